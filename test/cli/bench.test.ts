import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test, vi } from 'vitest';
import { type BenchOptions, type BenchTools, bench } from '../../cli/bench.js';
import { commitOf } from '../../cli/commit.js';
import { reportError } from '../../cli/output.js';
import { tuningHistory } from '../../cli/tuningHistory.js';
import { packageRoot } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { CudnnAttention } from '../../runtime/bench/cudnn.js';
import type { BenchInput } from '../../runtime/bench/run.js';
import { benchDocument } from '../../runtime/bench/schema.js';
import type { Device } from '../../runtime/device.js';
import { documentWith } from '../runtime/bench/document.js';
import { cli, documentOf, errorOf, quietContext, spawned, temporaryFolder } from './support.js';

const options: BenchOptions = {
  ...{ model: 'smollm2-135m', device: 'cuda', torch: 'python3', samples: '25', seed: '1', budget: '600', set: [] },
  lockfile: false,
};

const identity = { name: 'Fake GPU', driver: '1', architecture: 'sm_90a' };

function stub(result = documentWith(), cudnn: () => Promise<CudnnAttention> = async () => fakeCudnn) {
  const close = vi.fn(async () => {});
  const run = vi.fn(async (_: BenchInput) => result);
  const startCudnn = vi.fn(async () => cudnn());
  const device = { kind: 'cuda', target: 'cuda', description: 'a stub', identity, close } as unknown as Device;
  const tools: BenchTools = { open: async () => device, startCudnn, run };
  return { tools, run, close, startCudnn };
}

const closeCudnn = vi.fn();
const fakeCudnn = { close: closeCudnn } as unknown as CudnnAttention;

describe('what is asked for', () => {
  test('on CUDA is every known shape, beside cuDNN, by kernels for the device', async () => {
    const { tools, run, close, startCudnn } = stub();
    closeCudnn.mockClear();
    const long = { ...options, model: 'llama-3.1-8b' };
    expect((await bench(quietContext(), 'shard,shard-plus', long, tools)).code).toBe(0);
    const [input] = run.mock.calls[0]!;
    expect(input).toMatchObject({ baseline: 'cudnn', samples: 25, seed: 1, budgetMs: 600_000, encode: undefined });
    expect(input.shapes.map(({ sequences, tokens }) => `${sequences}x${tokens}`).join()).toBe(
      '1x8192,1x32768,1x131072,16x8192,16x32768,64x8192',
    );
    const short = stub();
    await bench(quietContext(), 'shard', options, short.tools);
    expect(short.run.mock.calls[0]![0].shapes).toEqual([1, 16, 64].map((sequences) => ({ sequences, tokens: 8192 })));
    expect(input.schemes.map(({ name }) => name)).toEqual(['shard', 'shard-plus']);
    const { target } = await input.schemes[0]!.generate({ sequences: 1, tokens: 8192 });
    expect(target).toEqual({ language: 'cuda', arch: 'sm_90a', tensorCores: true });
    expect(input.origin).toMatchObject({
      command:
        'kvforge bench shard,shard-plus --model llama-3.1-8b --device cuda --torch python3 --samples 25 --seed 1 --budget 600 --no-lockfile',
    });
    expect(startCudnn).toHaveBeenCalledWith(identity, { python: 'python3' });
    expect(closeCudnn).toHaveBeenCalledTimes(2);
    expect(close).toHaveBeenCalledOnce();
  });

  test('may be less, and other kernels', async () => {
    const { tools, run } = stub();
    const chosen = {
      ...{ ...options, shapes: '2x64', baseline: 'fp16', encode: '256', torch: '/opt/py thon' },
      ...{ arch: 'sm_80', set: ['attend.warps=8'] },
    };
    await bench(quietContext(), 'shard', chosen, tools);
    const [input] = run.mock.calls[0]!;
    expect(input).toMatchObject({
      ...{ baseline: 'fp16', shapes: [{ sequences: 2, tokens: 64 }] },
      encode: { tokens: 256, torch: { python: '/opt/py thon' } },
    });
    const { target, manifest } = await input.schemes[0]!.generate({ sequences: 2, tokens: 64 });
    expect(target).toMatchObject({ arch: 'sm_80' });
    expect(manifest.kernels.find(({ entry }) => entry === 'attend')!.tunables.warps).toBe(8);
    expect(input.origin.command).toContain("--torch '/opt/py thon'");
    expect(input.origin.command).toContain('--set attend.warps=8');
  });

  test('without cuDNN goes on, and the reason goes with it', async () => {
    const parts = { at: 'cuDNN through python3', expected: 'an answer', received: 'none', hint: 'Look.' };
    const { tools, run } = stub(documentWith({ cudnn: { missing: 'no torch' } }), () =>
      Promise.reject(new KvforgeError('missing-capability', parts)),
    );
    const { code, text } = await bench(quietContext(), 'shard', options, tools);
    expect(code).toBe(0);
    expect(await run.mock.calls[0]![0].cudnn).toEqual({
      missing: 'cuDNN through python3: expected an answer, got none',
    });
    expect(text).toContain('\ncuDNN: no torch\n');
  });

  test('ends what it has opened when a measurement fails', async () => {
    const { tools, close } = stub();
    closeCudnn.mockClear();
    const failing = { ...tools, run: () => Promise.reject(new Error('lost')) };
    await expect(bench(quietContext(), 'shard', options, failing)).rejects.toThrow('lost');
    expect(close).toHaveBeenCalledOnce();
    expect(closeCudnn).toHaveBeenCalledOnce();
  });
});

test('the result is a table, a document and a page', async () => {
  const folder = temporaryFolder();
  const [out, html] = [join(folder, 'bench.json'), join(folder, 'bench.html')];
  const { code, json, text } = await bench(quietContext(), 'shard', { ...options, out, html }, stub().tools);
  expect(code).toBe(0);
  expect(json).toEqual(documentWith());
  expect(benchDocument.parse(JSON.parse(readFileSync(out, 'utf8')))).toEqual(documentWith());
  expect(readFileSync(html, 'utf8')).toContain('<h1>Attention over a compressed cache: llama-3.1-8b</h1>');
  expect(text).toMatchInlineSnapshot(`
    "scheme  stage   shape    splits     us  spread   bytes read  GB/s  roofline   error  to fp16  to cuDNN
    shard   attend  16x8192       4   80.0     0.1   50,000,000   625       76%  3.0e-4     1.63      1.55
    fp16    attend  16x8192       4  130.0     0.1  500,000,000  3846       92%  3.0e-4     1.00      0.95
    cudnn   attend  16x8192       4  124.0     0.1  500,000,000  4032       96%  3.0e-4     1.05      1.00

    NVIDIA H200, driver 580.1; times by the device's clock
    a kernel that only reads: 4200 GB/s; specified for 989.5 TFLOP/s
    cuDNN 91900, torch 2.11.0, CUDA 13.0
    "
  `);
});

test('a note of the lock file that holds for every shape is told once', async () => {
  const lockfile = join(temporaryFolder(), 'kvforge.lock.json');
  writeFileSync(lockfile, '{ "format": 1 }');
  const { tools, run } = stub();
  const lines: string[] = [];
  await bench(quietContext(lines), 'shard,shard-plus', { ...options, lockfile }, tools);
  const { schemes } = run.mock.calls[0]![0];
  for (const tokens of [64, 128]) for (const scheme of schemes) await scheme.generate({ sequences: 1, tokens });
  expect(lines.filter((line) => line.includes(lockfile))).toEqual(
    ['shard', 'shard-plus'].map(
      (name) =>
        `${lockfile} has nothing for ${name} on smollm2-135m, sm_90a on Fake GPU: kernels have their default tunables`,
    ),
  );
});

test('kernels without tensor cores are for the architecture of the GPU too, as tune has them', async () => {
  const { tools, run } = stub();
  await bench(quietContext(), 'shard', { ...options, plain: true }, tools);
  const { target } = await run.mock.calls[0]![0].schemes[0]!.generate({ sequences: 1, tokens: 64 });
  expect(target).toEqual({ language: 'cuda', arch: 'sm_90a', tensorCores: false });
});

test('a wrong result ends with 1', async () => {
  const document = documentWith();
  const rows = document.rows.map((row) => ({
    ...row,
    correct: false,
    maxError: null,
    notes: ['wrong: error no number'],
  }));
  const { code, text } = await bench(quietContext(), 'shard', options, stub({ ...document, rows }).tools);
  expect(code).toBe(1);
  expect(text).toContain('shard, attend, 16x8192: wrong: error no number\n');
});

test('nothing measured ends with 1, and says why', async () => {
  const skipped = [{ scheme: 'shard', stage: 'attend' as const, shape: '1x64', reason: 'no room' }];
  const { code, text } = await bench(quietContext(), 'shard', options, stub(documentWith({ rows: [], skipped })).tools);
  expect(code).toBe(1);
  expect(text).toContain('shard, attend, 1x64: not measured: no room\n');
});

test.each([
  [{ device: 'tpu' }, '--device: expected one of emulator, webgpu, cuda, got "tpu"'],
  [{ samples: '4' }, '--samples: expected a whole number from 5 to 10000, got "4"'],
  [{ budget: '0' }, '--budget: expected a whole number from 1 to 86400, got "0"'],
  [{ seed: '-1' }, '--seed: expected a whole number from 0 to 2147483648, got "-1"'],
  [{ baseline: 'flash' }, '--baseline: expected one of cudnn, fp16, got "flash"'],
  [{ encode: 'all' }, '--encode: expected a whole number from 1 to 16777216, got "all"'],
  [
    { shapes: '1x0' },
    '--shapes: expected sequences x tokens, such as 16x8192 (at most 65535 sequences of 16777216 tokens), got "1x0"',
  ],
  [
    { out: '/no/such/folder/a' },
    '--out: expected a place to write /no/such/folder/a, got a path through a folder that does not exist',
  ],
  [{ shapes: '1x9000' }, '--shapes: expected at most 8192 tokens (the positions of smollm2-135m), got 1x9000'],
  [{ encode: '8193' }, '--encode: expected at most 8192 tokens (the positions of smollm2-135m), got 8193'],
  [{ html: '' }, '--html: expected a path, got ""'],
  [
    { html: '/no/such/folder/a' },
    '--html: expected a place to write /no/such/folder/a, got a path through a folder that does not exist',
  ],
])('%j is refused before a device is opened', async (change, message) => {
  const { tools, close } = stub();
  const fault = await bench(quietContext(), 'shard', { ...options, ...change }, tools).catch(reportError);
  expect(fault).toMatchObject({ code: 'wrong-use', message });
  expect(close).not.toHaveBeenCalled();
});

test('on the emulator both kernels are right, and cuDNN is not there', async () => {
  const args = [
    'bench',
    'shard',
    '--model',
    'smollm2-135m',
    '--device',
    'emulator',
    '--shapes',
    '2x100',
    '--samples',
    '5',
  ];
  const run = await cli(...args, '--json');
  expect(run.err).toContain('2x100: 5 samples of shard, fp16\n');
  expect(run.code).toBe(0);
  const { rows, ...document } = benchDocument.parse(documentOf(run));
  expect(document).toMatchObject({
    kind: 'emulator',
    clock: 'host',
    cudnn: { missing: 'no CUDA device' },
    skipped: [],
  });
  expect(rows.map(({ scheme, correct, ratioCudnn }) => [scheme, correct, ratioCudnn])).toEqual([
    ['shard', true, null],
    ['fp16', true, null],
  ]);
  expect(rows[0]!.ratioFp16).toBeCloseTo(rows[1]!.us / rows[0]!.us, 12);
  expect(rows[0]!.maxError).toBeGreaterThan(0);
});

test.each(['shard', 'fp16'])('schemes that could be taken for another are refused: %s', async (name) => {
  const file = join(temporaryFolder(), 'own scheme.ts');
  writeFileSync(
    file,
    `import { shard } from 'kvforge';\nexport const own = { ...shard, name: '${name}', sinks: 8 };\n`,
  );
  const work = ['--device', 'emulator', '--shapes', '1x64', '--json'];
  // The hooks that load the file belong to a whole process.
  const run = await spawned(['bench', `shard,${file}`, '--model', 'smollm2-135m', ...work]);
  expect(run.code).toBe(2);
  expect(errorOf(run).message).toBe(
    `scheme: expected schemes with names of their own, other than fp16, cudnn and torch, got ${name}`,
  );
});

test('an encode of a prompt without a middle is not measured, and says so', async () => {
  const args = [
    'bench',
    'shard',
    '--model',
    'smollm2-135m',
    '--device',
    'emulator',
    '--shapes',
    '1x64',
    '--samples',
    '5',
  ];
  const run = await cli(...args, '--encode', '68', '--json');
  const { rows, skipped } = benchDocument.parse(documentOf(run));
  expect(rows.map(({ scheme, stage, cold }) => [scheme, stage, cold])).toEqual([
    ['shard', 'attend', false],
    ['fp16', 'attend', false],
  ]);
  const reason = 'encode: expected more than 68 tokens (those that stay exact), got 68';
  expect(skipped).toEqual([{ scheme: 'shard', stage: 'encode', shape: '1x68', reason }]);
});

test('out of time, what is left is not begun', async () => {
  const args = ['bench', 'shard', '--model', 'smollm2-135m', '--device', 'emulator', '--samples', '5', '--budget', '1'];
  // The first is always measured, and takes more than half of a second of preparation alone.
  const run = await cli(...args, '--shapes', '4x300,1x64', '--json');
  const { rows, skipped } = benchDocument.parse(documentOf(run));
  expect(rows.map(({ shape }) => shape)).toEqual(['4x300', '4x300']);
  expect(skipped).toEqual([
    { scheme: 'shard', stage: 'attend', shape: '1x64', reason: 'out of time: 0 s of the budget are left' },
    { scheme: 'fp16', stage: 'attend', shape: '1x64', reason: 'out of time: 0 s of the budget are left' },
  ]);
});

test('a target without an fp16 kernel says so', async () => {
  const args = [
    'bench',
    'shard',
    '--model',
    'smollm2-135m',
    '--device',
    'emulator',
    '--shapes',
    '1x64',
    '--samples',
    '5',
  ];
  const { rows, skipped } = benchDocument.parse(documentOf(await cli(...args, '--plain', '--json')));
  expect(rows.map(({ scheme, ratio }) => [scheme, ratio])).toEqual([['shard', null]]);
  expect(skipped).toEqual([
    {
      ...{ scheme: 'fp16', stage: 'attend', shape: '1x64' },
      reason:
        'attendFp16: expected a schedule that fits smollm2-135m on cuda, got without tensor cores there is no schedule for CUDA',
    },
  ]);
});

describe('a commit', () => {
  test('is that of the sources', async () => {
    const hash = execFileSync('git', ['rev-parse', 'HEAD'], { cwd: packageRoot, encoding: 'utf8' }).trim();
    expect(await commitOf()).toMatchObject({ hash });
  });

  test('of a repository that kvforge is only installed in is none', async () => {
    const folder = temporaryFolder();
    execFileSync('git', ['init', '-q', folder]);
    const who = ['-c', 'user.name=a', '-c', 'user.email=a@b'];
    execFileSync('git', ['-C', folder, ...who, 'commit', '-q', '--allow-empty', '-m', 'one']);
    expect(await commitOf(folder)).toMatchObject({ modified: false });
    writeFileSync(join(folder, 'new'), '');
    expect(await commitOf(folder)).toMatchObject({ modified: true });
    const inner = join(folder, 'node_modules', 'kvforge');
    mkdirSync(inner, { recursive: true });
    expect(await commitOf(inner)).toBeNull();
  });

  test('of a folder that is no repository is none', async () => {
    expect(await commitOf(temporaryFolder())).toBeNull();
  });
});

describe('the history of a tuner', () => {
  const write = (text: string) => {
    const file = join(temporaryFolder(), 'tune.json');
    writeFileSync(file, text);
    return file;
  };

  test.each([
    ['{', /^--history .*: expected JSON, got /],
    [
      '{}',
      /^--history .*: expected the document of kvforge tune, got shapes: Invalid input: expected array, received undefined$/,
    ],
  ])('that is %j is refused', async (text, message) => {
    const fault = reportError(await tuningHistory(write(text)).catch((error: unknown) => error));
    expect(fault).toMatchObject({ code: 'wrong-use', message: expect.stringMatching(message) });
  });

  test('is a line for every stage and shape', async () => {
    const history = [
      { seconds: 1, candidate: 'warps 4', microseconds: 50, best: 50 },
      { seconds: 2, candidate: 'warps 8', microseconds: 60, best: 50 },
    ];
    const shapes = [
      { stage: 'attend', shape: '1x8192', tried: 2, history },
      { stage: 'project', shape: '1x8192', history: [] },
    ];
    expect(await tuningHistory(write(JSON.stringify({ scheme: 'shard', shapes })))).toEqual([
      { series: 'attend 1x8192', seconds: 1, us: 50 },
      { series: 'attend 1x8192', seconds: 2, us: 50 },
    ]);
  });

  test('that is not there is refused before a device is opened', async () => {
    const run = await cli(
      'bench',
      'shard',
      '--model',
      'smollm2-135m',
      '--device',
      'cuda',
      '--history',
      '/no/such',
      '--json',
    );
    expect(run.code).toBe(2);
    expect(errorOf(run)).toMatchObject({ message: '--history /no/such: expected a file that can be read, got ENOENT' });
  });
});
