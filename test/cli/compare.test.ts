import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test, vi } from 'vitest';
import { type CompareOptions, type CompareTools, compare } from '../../cli/compare.js';
import { reportError } from '../../cli/output.js';
import { keyValueSchemeNames, schemeNames } from '../../dsl/schemes/presets.js';
import type { CompareInput } from '../../runtime/compare/run.js';
import { compareDocument } from '../../runtime/compare/schema.js';
import type { Device } from '../../runtime/device.js';
import { tinyConfig, tinyLayer, writeActivations } from '../runtime/compare/activationsFile.js';
import { comparisonWith, rowWith, rowWithout } from '../runtime/compare/document.js';
import { cli, documentOf, errorOf, quietContext, temporaryFolder } from './support.js';

const options: CompareOptions = {
  ...{ model: 'smollm2-135m', device: 'emulator', samples: '25', seed: '1', budget: '600' },
  lockfile: false,
};

function stub(result = comparisonWith()) {
  const close = vi.fn(async () => {});
  const run = vi.fn(async (_: CompareInput) => result);
  const identity = { name: 'Fake GPU', driver: '1', architecture: 'sm_90a' };
  const device = { kind: 'cuda', target: 'cuda', description: 'a stub', identity, close } as unknown as Device;
  const tools: CompareTools = { open: async () => device, run };
  return { tools, run, close };
}

/** The tiny model and activations of two of its layers. */
function tiny(): { readonly config: string; readonly file: string } {
  const folder = temporaryFolder();
  const config = join(folder, 'tiny.json');
  writeFileSync(config, JSON.stringify(tinyConfig));
  const file = writeActivations(join(folder, 'a.safetensors'), [...tinyLayer(0, 150, 3), ...tinyLayer(2, 150, 3)]);
  return { config, file };
}

describe('what is compared', () => {
  test('is every preset on the activations that come with kvforge, by bytes of as many tokens', async () => {
    const { tools, run, close } = stub();
    expect((await compare(quietContext(), '', options, tools)).code).toBe(0);
    const [input] = run.mock.calls[0]!;
    expect(input.schemes.map(({ scheme }) => scheme.name)).toEqual(keyValueSchemeNames);
    expect(input.layers.map(({ layer }) => layer)).toEqual([2, 14, 27]);
    expect(input).toMatchObject({ shapes: [{ sequences: 1, tokens: 2048 }], samples: 25, seed: 1, budgetMs: 600_000 });
    expect(input.origin.command).toBe(
      'kvforge compare --model smollm2-135m --device emulator --samples 25 --seed 1 --budget 600 --no-lockfile',
    );
    const { target } = await input.schemes[0]!.generate({ sequences: 1, tokens: 2048 });
    expect(target).toEqual({ language: 'cuda', arch: 'sm_90a', tensorCores: true });
    expect(close).toHaveBeenCalledOnce();
  });

  test('may be chosen, file and layers and shapes too', async () => {
    const { config, file } = tiny();
    const { tools, run } = stub();
    const chosen = {
      ...options,
      model: config,
      activations: file,
      layers: '2',
      shapes: '4x100,1x200',
      plain: true,
    } as const;
    await compare(quietContext(), 'int8,int4', chosen, tools);
    const [input] = run.mock.calls[0]!;
    expect(input.schemes.map(({ scheme }) => scheme.name)).toEqual(['int8', 'int4']);
    expect(input.layers.map(({ layer, tokens }) => [layer, tokens])).toEqual([[2, 150]]);
    expect(input.source).toBe('a tiny model');
    expect(input.shapes.map(({ sequences, tokens }) => [sequences, tokens])).toEqual([
      [4, 100],
      [1, 200],
    ]);
    const { target } = await input.schemes[0]!.generate({ sequences: 4, tokens: 100 });
    expect(target).toMatchObject({ tensorCores: false });
  });
});

test('the result is a table, a document and a page', async () => {
  const folder = temporaryFolder();
  const [out, html] = [join(folder, 'compare.json'), join(folder, 'compare.html')];
  const { code, json, text } = await compare(quietContext(), 'int8', { ...options, out, html }, stub().tools);
  expect(code).toBe(0);
  expect(json).toEqual(comparisonWith());
  expect(compareDocument.parse(JSON.parse(readFileSync(out, 'utf8')))).toEqual(comparisonWith());
  expect(readFileSync(html, 'utf8')).toContain('<h1>Schemes for smollm2-135m: bytes against attention error</h1>');
  expect(text).toMatchInlineSnapshot(`
    "scheme  front  bytes, 1x2048  a token  to fp16   error    bias  kernel error
    small   *            100,000     48.8    15.73  20.00%  -7.00%        1.0e-4
    large   *            400,000    195.3     3.93   2.50%   0.10%        1.0e-4
    beaten               500,000    244.1     3.15  10.00%  -1.00%        1.0e-4
    unfit

    a recording, layer 14: error and bias of the last 16 queries of every head, means over the layers
    * on the front: no other scheme has as few bytes and as small an error
    fp16, 1x2048: 1,572,864 bytes, 768.0 a token
    CPU emulator of CUDA, driver g++ 12; no times: a CPU measures no GPU
    unfit: keys: expected less, got more
    "
  `);
});

test('a scheme that failed its check ends with 1, after everything is printed and written', async () => {
  const out = join(temporaryFolder(), 'compare.json');
  const rows = [rowWith('good', { front: true }), rowWith('bad', { correct: false, kernelError: 0.5 })];
  const { tools } = stub(comparisonWith({ rows, failed: ['bad'] }));
  const { code, text } = await compare(quietContext(), 'int8', { ...options, out }, tools);
  expect(code).toBe(1);
  expect(text).toContain('\nbad: wrong: kernel error 5.0e-1, at most 2e-3 is right\n');
  expect(JSON.parse(readFileSync(out, 'utf8'))).toMatchObject({ failed: ['bad'] });
});

test('nothing measured ends with 1, one that does not fit beside others does not', async () => {
  const only = stub(comparisonWith({ rows: [rowWithout('unfit', 'no room')] }));
  const { code, text } = await compare(quietContext(), 'int8', options, only.tools);
  expect(code).toBe(1);
  expect(text).toContain('\nunfit: no room\n');
  expect((await compare(quietContext(), 'int8', options, stub().tools)).code).toBe(0);
});

test('a device is closed when a comparison fails', async () => {
  const { tools, close } = stub();
  const failing = { ...tools, run: () => Promise.reject(new Error('lost')) };
  await expect(compare(quietContext(), 'int8', options, failing)).rejects.toThrow('lost');
  expect(close).toHaveBeenCalledOnce();
});

test.each([
  [{ device: 'tpu' }, 'wrong-use', '--device: expected one of emulator, webgpu, cuda, got "tpu"'],
  [{ samples: '4' }, 'wrong-use', '--samples: expected a whole number from 5 to 10000, got "4"'],
  [{ seed: '-1' }, 'wrong-use', '--seed: expected a whole number from 0 to 2147483648, got "-1"'],
  [{ budget: '0' }, 'wrong-use', '--budget: expected a whole number from 1 to 86400, got "0"'],
  [{ layers: '3' }, 'wrong-use', '--layers: expected one of 2, 14, 27, got "3"'],
  [
    { shapes: '1x9000' },
    'wrong-use',
    '--shapes: expected at most 8192 tokens (the positions of smollm2-135m), got 1x9000',
  ],
  [
    { shapes: '8192' },
    'wrong-use',
    '--shapes: expected sequences x tokens, such as 16x8192 (at most 65535 sequences of 16777216 tokens), got "8192"',
  ],
  [{ lockfile: '/no/such' }, 'wrong-use', '--lockfile: expected a file, got /no/such, which does not exist'],
  [{ html: '' }, 'wrong-use', '--html: expected a path, got ""'],
  [
    { out: '/no/such/folder/a' },
    'wrong-use',
    '--out: expected a place to write /no/such/folder/a, got a path through a folder that does not exist',
  ],
  [
    { model: 'llama-3.1-8b' },
    'wrong-use',
    '--activations: expected a file of activations recorded from llama-3.1-8b, got none',
  ],
  [{ activations: '/no/such' }, 'invalid-input', '/no/such: expected recorded activations, got no such file'],
])('%j is refused before a device is opened', async (change, code, message) => {
  const { tools } = stub();
  const open = vi.fn(tools.open);
  const fault = await compare(quietContext(), 'int8', { ...options, ...change }, { ...tools, open }).catch(reportError);
  expect(fault).toMatchObject({ code, message });
  expect(open).not.toHaveBeenCalled();
});

test('where only other activations come with kvforge, it says whose', async () => {
  const run = await cli('compare', '--model', 'llama-3.1-8b', '--json');
  expect(run.code).toBe(2);
  expect(errorOf(run).hint).toBe(
    'Those that come with kvforge are of smollm2-135m; docs/compare.md says what a file holds.',
  );
});

test('a scheme that is none is refused', async () => {
  const run = await cli('compare', 'int8,no-such', '--model', 'smollm2-135m', '--json');
  expect(run.code).toBe(2);
  expect(errorOf(run).message).toBe(
    `scheme: expected one of ${schemeNames.join(', ')}, or a path that ends in .ts, .js or .mjs, got "no-such"`,
  );
});

test('on the emulator, layers are measured one by one, and what does not fit is a row', async () => {
  const { config, file } = tiny();
  // With commas or spaces between the schemes.
  const run = await cli(
    'compare',
    'nf4,int2',
    'int8',
    '--model',
    config,
    '--activations',
    file,
    '--json',
    '--no-lockfile',
  );
  expect(run.code).toBe(0);
  const { rows, failed, model, layers, queries, fp16 } = compareDocument.parse(documentOf(run));
  expect({ model, layers, queries, failed }).toEqual({ model: 'tiny', layers: [0, 2], queries: 3, failed: [] });
  expect(rows.map(({ scheme, correct }) => [scheme, correct])).toEqual([
    ['int2', true],
    ['int8', true],
    ['nf4', null],
  ]);
  expect(rows[2]!.reason).toBe(
    "keys[0].block.channels: expected a number that divides the head dimension 32, or 'head', got 64",
  );
  const [int2, int8] = rows;
  expect(int8!.layers.map(({ layer }) => layer)).toEqual([0, 2]);
  expect(int8!.attentionError!).toBeLessThan(0.1 * int2!.attentionError!);
  expect([int2!.front, int8!.front]).toEqual([true, true]);
  // 2 heads of 32 channels, 2 bytes, keys and values.
  expect(fp16.bytes).toBe(150 * 2 * 32 * 2 * 2);
  const plan = documentOf(await cli('inspect', 'int8', '--model', config, '--tokens', '150', '--json'));
  expect(int8!.bytes).toBe(plan.totalBytes);
});
