import { spawnSync } from 'node:child_process';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { packagePath } from '../../../codegen/packageRoot.js';
import { modelFrom, presetModel } from '../../../dsl/model.js';
import { CudnnAttention } from '../../../runtime/bench/cudnn.js';

const llama = presetModel('llama-3.1-8b');
const shape = { sequences: 1, tokens: 8192 };
const device = { name: 'Fake GPU', driver: '1' };
const script = packagePath('test', 'runtime', 'bench', 'fakeTorch.mjs');
const python = process.execPath;
const at = `cuDNN through ${python}`;

function start(how: string, limitsMs = { start: 20_000, answer: 20_000 }): Promise<CudnnAttention> {
  vi.stubEnv('FAKE_TORCH', how);
  return CudnnAttention.start(device, { python, script, limitsMs });
}

afterEach(() => void vi.unstubAllEnvs());

test('prepares a shape and gives as many samples as asked for', async () => {
  const cudnn = await start('good');
  expect(cudnn.versions).toEqual({ torch: '2.11.0', cuda: '13.0', cudnn: '91900', device: 'Fake GPU' });
  expect(await cudnn.prepare(llama, shape, 1)).toEqual({ copies: 8, bytes: 33554432, maxError: 2e-4 });
  expect(await cudnn.sample(3)).toEqual([10, 11, 12]);
  expect(await cudnn.sample(1)).toEqual([10]);
  cudnn.close();
  await expect(cudnn.sample(1)).rejects.toThrow(`${at}: expected an answer, got its end with signal SIGKILL.`);
});

test.each([
  ['missing', "expected torch with cuDNN on a CUDA device, got No module named 'torch'."],
  [
    'crash',
    'expected an answer, got its end with exit code 1: ImportError: libcudnn.so.9: cannot open shared object file.',
  ],
  ['garbage', 'expected a JSON object, got "Welcome to Python <b>3</b>".'],
  ['form', 'expected an answer of its form, got cudnn: Invalid input: expected string, received undefined.'],
  ['endless', 'expected an answer, got more than 1048576 characters without an end.'],
  ['other', 'expected torch on Fake GPU, got torch on NVIDIA L4.'],
])('that is %s at the start says so', async (how, text) => {
  await expect(start(how)).rejects.toThrow(`${at}: ${text} Run it by itself to see what it prints.`);
});

test('that hangs is given up', async () => {
  await expect(start('hang', { start: 300, answer: 300 })).rejects.toThrow(
    `${at}: expected an answer, got none within 0.3 s. Run it by itself to see what it prints.`,
  );
});

test('that is not there says so', async () => {
  const options = { python: '/no/such/python3', script };
  await expect(CudnnAttention.start(device, options)).rejects.toThrow(
    'cuDNN through /no/such/python3: expected a program that starts, got no program /no/such/python3.',
  );
});

test.each([
  ['killed', 'expected an answer, got its end with signal SIGKILL.'],
  ['silent', 'expected an answer, got none within 0.5 s.'],
  ['few', 'expected 4 times, got 1.'],
  ['negative', 'expected an answer of its form, got us.0: Too small: expected number to be >0.'],
])('that is %s when it is timed says so, and is asked no more', async (how, text) => {
  const cudnn = await start(how, { start: 20_000, answer: 500 });
  await cudnn.prepare(llama, shape, 1);
  await expect(cudnn.sample(4)).rejects.toThrow(`${at}: ${text}`);
  await expect(cudnn.prepare(llama, shape, 1)).rejects.toThrow(`${at}: ${text}`);
  cudnn.close();
});

test('that answers twice is not believed', async () => {
  const cudnn = await start('twice');
  await cudnn.prepare(llama, shape, 1);
  expect(await cudnn.sample(1)).toEqual([1]);
  await expect(cudnn.sample(1)).rejects.toThrow(
    `${at}: expected one answer to a request, got another: {"us":[2]}. Run it by itself to see what it prints.`,
  );
});

test('a shape that it has no room for leaves the others', async () => {
  const cudnn = await start('memory');
  await expect(cudnn.prepare(llama, { sequences: 64, tokens: 8192 }, 1)).rejects.toThrow(
    'cuDNN: expected attention of this shape, got CUDA out of memory. Tried to allocate 2.00 GiB. Leave the shape out, or free memory of the GPU.',
  );
  expect(await cudnn.prepare(llama, shape, 1)).toMatchObject({ copies: 8 });
  expect(await cudnn.sample(1)).toEqual([10]);
  cudnn.close();
});

test('other attention than cuDNN is called for is not compared', async () => {
  const cudnn = await start('good');
  const gemma = presetModel('gemma-2-9b');
  await expect(cudnn.prepare(gemma, shape, 1)).rejects.toThrow(
    'cuDNN for gemma-2-9b: expected attention over all tokens, got capped scores. Compare with --baseline fp16.',
  );
  const windowed = modelFrom({
    ...{
      model_type: 'mistral',
      hidden_size: 128,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      num_key_value_heads: 2,
    },
    ...{ max_position_embeddings: 32768, rope_theta: 10000, sliding_window: 4096 },
  });
  await expect(cudnn.prepare(windowed, shape, 1)).rejects.toThrow('got a window of 4096 tokens.');
  expect(await cudnn.prepare(windowed, { sequences: 1, tokens: 4096 }, 1)).toMatchObject({ copies: 8 });
  cudnn.close();
});

const hasPython = spawnSync('python3', ['--version']).status === 0;

describe.skipIf(!hasPython)('the script in Python (skipped where there is none)', () => {
  const own = (folder: string) => {
    vi.stubEnv('PYTHONPATH', folder);
    vi.stubEnv('PYTHONDONTWRITEBYTECODE', '1');
    return CudnnAttention.start(device, { python: 'python3' });
  };

  test('keeps to its lines, whatever torch prints', async () => {
    const cudnn = await own(packagePath('test', 'runtime', 'bench', 'standInTorch'));
    expect(cudnn.versions).toEqual({ torch: '2.11.0', cuda: '13.0', cudnn: '91900', device: 'Fake GPU' });
    // 2^28 bytes in copies of 32 MiB.
    expect(await cudnn.prepare(llama, shape, 1)).toEqual({ copies: 8, bytes: 2 ** 25, maxError: 1e-4 });
    // A graph that takes 0.4 ms for 8 copies is made five times as long, and still seems to take 0.4 ms.
    expect(await cudnn.sample(2)).toEqual([10, 10]);
    await expect(cudnn.prepare(llama, { sequences: 3, tokens: 64 }, 1)).rejects.toThrow(
      'cuDNN: expected attention of this shape, got No available kernel. Aborting execution.',
    );
    expect(await cudnn.prepare(llama, { sequences: 2, tokens: 64 }, 1)).toMatchObject({ copies: 512 });
    cudnn.close();
  });
});
