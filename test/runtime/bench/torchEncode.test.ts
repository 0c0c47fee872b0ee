import { afterEach, describe, expect, test, vi } from 'vitest';
import { packagePath } from '../../../codegen/packageRoot.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import { encodeRow } from '../../../runtime/bench/encodeRow.js';
import { torchEncode } from '../../../runtime/bench/torchEncode.js';

const g = geometryOf(shard, presetModel('llama-3.1-8b'));
const device = { name: 'Fake GPU', driver: '1' };
const tokens = 2;
const prompt = {
  keys: new Uint16Array(tokens * g.width).fill(7),
  values: new Uint16Array(tokens * g.width).fill(9),
  tokens,
};
const script = packagePath('test', 'runtime', 'bench', 'fakeTorchEncode.mjs');
const python = process.execPath;

function run(how: string, limitMs = 20_000) {
  vi.stubEnv('FAKE_TORCH', how);
  return torchEncode(g, device, prompt, { python, script, limitMs });
}

afterEach(() => void vi.unstubAllEnvs());

test('the same prompt is encoded, and the steps that counted give the errors', async () => {
  expect(await run('good')).toEqual({
    ...{ ms: 100, publishedMs: 300, keysError: 0.21, valuesError: 0.31 },
    torch: '2.11.0 8,2,128 F16 7 9',
  });
});

test.each([
  ['crash', "expected a result, got its end with exit code 1: ModuleNotFoundError: No module named 'torch'."],
  ['nothing', 'expected a result, got no file.'],
  ['garbage', 'expected a result of its form, got Invalid input: expected object, received undefined.'],
  ['other', 'expected torch on Fake GPU, got torch on NVIDIA L4.'],
  ['uncounted', 'expected an error of the step basis, got none.'],
])('one that is %s says so', async (how, text) => {
  const hint = 'Run bench/encode_torch.py by itself to see what it prints.';
  await expect(run(how)).rejects.toThrow(`encode through ${python}: ${text} ${hint}`);
});

test('one that hangs is given up', async () => {
  await expect(run('hang', 500)).rejects.toThrow('expected a result, got none within 0.5 s.');
});

test('one that is not there says so', async () => {
  const options = { python: '/no/such/python3', script };
  await expect(torchEncode(g, device, prompt, options)).rejects.toThrow(
    'expected a result, got no program /no/such/python3.',
  );
});

test('another model of the same name is not what it follows', async () => {
  const other = geometryOf(shard, { ...presetModel('llama-3.1-8b'), heads: 64, groupSize: 8 });
  await expect(torchEncode(other, device, prompt, { python, script })).rejects.toThrow(
    'expected shard for llama-3.1-8b, got shard for llama-3.1-8b of another shape.',
  );
});

test('another scheme is not what it follows', async () => {
  const other = geometryOf(shardPlus, presetModel('llama-3.1-8b'));
  await expect(torchEncode(other, device, prompt, { python, script })).rejects.toThrow(
    'expected shard for llama-3.1-8b, got shard-plus for llama-3.1-8b.',
  );
});

describe('the row of an encode', () => {
  const timing = { us: 10_000, spread: 1, p10: 1, p90: 1, samples: 5 };
  const beside = { ms: 150, publishedMs: 250, keysError: 0.2, valuesError: 0.3, torch: '2.11.0' };
  const ceilings = { bytesPerSecond: 4e12 };
  const row = (keysError: number, valuesError: number, torch: typeof beside | null = beside) => {
    const measured = { timing, bytes: 1000, keysError, valuesError };
    const shape = { sequences: 1, tokens: 8192 };
    const encoded = { scheme: 'shard', shape, measured, tunables: {}, beside: torch ?? undefined };
    return encodeRow(encoded, g, ceilings, 6e7);
  };

  test('has its ratio to torch', () => {
    const what = 'reconstruction of the middle: keys 0.2010, values 0.3000; torch 0.2000 and 0.3000';
    expect(row(0.201, 0.3)).toMatchObject({
      // A prompt of 34 MB may stay in a cache of 60 MB.
      cold: false,
      ...{ stage: 'encode', correct: true, baselineUs: 150_000, ratio: 15, ratioFp16: null, ratioCudnn: null },
      ...{ checked: what, maxError: 0.201, notes: ['torch with svd_lowrank: 250.0 ms'] },
    });
  });

  test.each([
    [0.21, 0.3],
    [0.2, 0.31],
    [0.2, Number.NaN],
    [Number.NaN, 0.3],
  ])('has none where it errs more: %s, %s', (keys, values) => {
    expect(row(keys, values)).toMatchObject({ correct: false, ratio: null });
  });

  test('without torch has no ratio, and is wrong where zeros would be as good', () => {
    expect(row(0.9, 0.3, null)).toMatchObject({ correct: true, ratio: null, baselineUs: null });
    expect(row(1.01, 0.3, null)).toMatchObject({ correct: false });
  });
});
