import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { type TuneOptions, type TuneTools, tuneCommand } from '../../cli/tune.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { targetFor } from '../../runtime/targetFor.js';
import type { Measurer, Outcome } from '../../runtime/tune/child.js';
import { targetName } from '../../runtime/tune/lock/format.js';
import type { DeviceFacts, Variant } from '../../runtime/tune/protocol.js';
import { cli, documentOf, errorOf, quietContext, spawned, temporaryFolder } from './support.js';

const facts: DeviceFacts = {
  name: 'Scripted GPU',
  driver: '1.0',
  architecture: 'sm_90',
  multiprocessors: 100,
  sharedBytes: 200_000,
  features: [],
  clock: 'device',
};

/** A measurer whose times follow from the tunables of decoding, and what was asked of it. */
function scripted(outcomeOf: (variant: Variant) => Outcome, own = facts) {
  const folder = temporaryFolder();
  const asked: string[] = [];
  const measurer: Measurer = {
    facts: async () => {
      asked.push('open');
      return own;
    },
    ask: async (request) => {
      asked.push(request.type);
      if (request.type === 'measure') return outcomeOf(request.variant);
      if (request.type === 'compile') return { type: 'compiled' };
      const samples = request.variants.map((variant) => {
        const outcome = outcomeOf(variant);
        return outcome.type === 'measured' ? outcome.samples : [];
      });
      return { type: 'repeated', samples };
    },
    close: async () => void asked.push('close'),
  };
  const tools: TuneTools = { measurer: () => measurer, folder: async () => folder };
  return { tools, asked, folder };
}

const timed = (...samples: readonly number[]): Outcome => ({ type: 'measured', samples, bytes: 2e6, cold: true });

/** Of the two configurations of decoding, tiles of 16 tokens are the faster one. */
const decoding = ({ tunables }: Variant) => (tunables.tileTokens === 8 ? timed(40, 41, 42) : timed(20, 21, 22));

const options = (parts: Partial<TuneOptions> = {}): TuneOptions => ({
  model: 'smollm2-135m',
  device: 'cuda',
  stages: 'decompress',
  shapes: '1x1024',
  budget: '60',
  limit: '60',
  lockfile: join(temporaryFolder(), 'kvforge.lock.json'),
  ...parts,
});

interface Document {
  readonly target: string;
  readonly shapes: readonly {
    readonly stage: string;
    readonly winner?: { readonly tunables: object; readonly microseconds: number; readonly gigabytesPerSecond: number };
    readonly tried: number;
    readonly history: readonly { readonly best: number }[];
  }[];
}

test('tune keeps the winners in a lock file, which generate takes', async () => {
  const given = options();
  const { tools } = scripted(decoding);
  const lines: string[] = [];
  const { json, text, code } = await tuneCommand(quietContext(lines), 'shard', given, tools);
  expect(code).toBe(0);
  const document = json as Document;
  expect(document.target).toBe('sm_90');
  expect(document.shapes).toMatchObject([
    { stage: 'decompress', shape: '1x1024', tried: 2, pruned: 0, failed: 0, left: 0 },
  ]);
  const [{ winner, history } = { history: [] }] = document.shapes;
  expect(winner).toMatchObject({ tunables: { tileTokens: 16 }, microseconds: 21, spread: 1, cold: true, ties: [] });
  // 2 MB in 21 us.
  expect(winner!.gigabytesPerSecond).toBeCloseTo(2e6 / 21e-6 / 1e9, 9);
  expect(history.map(({ best }) => best)).toEqual([41, 21]);
  expect(text).toMatch(
    /^stage +shape +winner +us +spread +GB\/s +error +ties +tried +pruned +failed +left +rank\ndecompress +1x1024 +tileTokens 16 +21\.0 +1\.00 +95\.2 +0 +2 +0 +0 +0/,
  );
  expect(text).toContain(`winners are in ${given.lockfile}`);
  expect(lines[0]).toBe('tuning shard on smollm2-135m for sm_90: Scripted GPU, driver 1.0');

  const kernels = ['generate', 'shard', '--model', 'smollm2-135m', '--target', 'cuda', '--lockfile', given.lockfile];
  const out = join(temporaryFolder(), 'kernels');
  const run = await cli(...kernels, '--arch', 'sm_90', '--out', out);
  expect(run.err).toBe(`decompress: tileTokens 16 (${given.lockfile}: Scripted GPU, driver 1.0, 1x1024)\n`);
  expect(readFileSync(join(out, 'decompress.cu'), 'utf8')).toContain('tunables: tileTokens = 16');

  const elsewhere = await cli(...kernels, '--out', join(temporaryFolder(), 'kernels'));
  expect(elsewhere.err).toBe(
    `${given.lockfile} has nothing for shard on smollm2-135m, sm_80: kernels have their default tunables\n`,
  );
  const named = ['--arch', 'sm_90', '--set', 'decompress.tileTokens=8', '--out', join(temporaryFolder(), 'kernels')];
  expect((await cli(...kernels, ...named)).err).toBe(`decompress: as --set names it, not as in ${given.lockfile}\n`);

  const lock = readFileSync(given.lockfile, 'utf8');
  writeFileSync(given.lockfile, lock.replace(/"source": ".{8}/, '"source": "00000000'));
  const old = await cli(...kernels, '--arch', 'sm_90', '--out', join(temporaryFolder(), 'kernels'));
  expect(old.err).toContain('1x1024; its text has changed since, so tune again)\n');
});

test('a second run opens no device, and gives the same lock file', async () => {
  const given = options();
  const first = scripted(decoding);
  expect((await tuneCommand(quietContext(), 'shard', given, first.tools)).text).not.toContain('nothing was measured');
  expect(first.asked).toEqual(['open', 'measure', 'measure', 'close']);
  const before = readFileSync(given.lockfile, 'utf8');
  first.asked.length = 0;
  const started = performance.now();
  const { text } = await tuneCommand(quietContext(), 'shard', given, first.tools);
  expect(text).toContain('nothing was measured now: every result was kept from an earlier run\n');
  expect(performance.now() - started).toBeLessThan(1000);
  expect(first.asked).toEqual(['close']);
  expect(readFileSync(given.lockfile, 'utf8')).toBe(before);
});

test('a driver that was replaced since ends the run before anything is measured', async () => {
  const { tools, folder, asked } = scripted(decoding);
  await tuneCommand(quietContext(), 'shard', options(), tools);
  const other = scripted(decoding, { ...facts, driver: '2.0' });
  const given = options({ shapes: '1x2048' });
  await expect(
    tuneCommand(quietContext(), 'shard', given, { ...other.tools, folder: async () => folder }),
  ).rejects.toThrow(
    'device: expected Scripted GPU, driver 1.0, as it was last, got Scripted GPU, driver 2.0. Run the command again: the device is known now.',
  );
  expect(other.asked).toEqual(['open', 'close']);
  expect(asked).toContain('measure');
});

test('a stage of which nothing runs is a failure, and is explained', async () => {
  const { tools } = scripted(() => ({ type: 'crashed', reason: 'the process ended with SIGSEGV' }));
  const given = options({ explain: true });
  const { code, text, json } = await tuneCommand(quietContext(), 'shard', given, tools);
  expect(code).toBe(1);
  expect((json as Document).shapes[0]).toMatchObject({ stage: 'decompress', tried: 0, failed: 2 });
  expect(text).toContain('no winners to write');
  expect(text).toMatch(/decompress +1x1024 +tileTokens 8 +crashed +the process ended with SIGSEGV\n/);
  expect(existsSync(given.lockfile)).toBe(false);
});

test('every configuration that was left out is explained', async () => {
  const { tools } = scripted(({ tunables }) =>
    tunables.tileTokens === 8 ? timed(40) : { type: 'wrong', reason: 'decompress, keys: error 1.0e+0, at most 2.0e-3' },
  );
  const { code, text } = await tuneCommand(quietContext(), 'shard', options({ explain: true }), tools);
  expect(code).toBe(0);
  expect(text).toMatch(/tileTokens 16 +wrong +decompress, keys: error 1\.0e\+0, at most 2\.0e-3\n/);
});

test.each([
  [['--device', 'tpu'], '--device: expected one of emulator, webgpu, cuda, got "tpu"'],
  [['--device', 'cuda', '--budget', '0'], '--budget: expected a whole number from 1 to 86400, got "0"'],
  [['--device', 'cuda', '--shapes', '16'], /^--shapes: expected sequences x tokens, such as 16x8192 .*, got "16"$/],
  [
    ['--device', 'cuda', '--shapes', '1x8193'],
    '--shapes: expected at most 8192 tokens (the positions of smollm2-135m), got 1x8193',
  ],
  [['--device', 'webgpu', '--arch', 'sm_90'], '--arch does not apply to wgsl kernels'],
])('tune %j is refused', async (args, message) => {
  const run = await cli('tune', 'shard', '--model', 'smollm2-135m', ...args, '--json');
  expect(run.code).toBe(2);
  expect(errorOf(run).message).toEqual(typeof message === 'string' ? message : expect.stringMatching(message));
});

test('winners that were timed on inputs in a cache are said to be', async () => {
  const given = options();
  const { tools } = scripted((variant) => ({ ...decoding(variant), cold: false }) as Outcome);
  const { text } = await tuneCommand(quietContext(), 'shard', given, tools);
  expect(text).toMatch(/tileTokens 16 +21\.0 +1\.00 +95\.2 warm /);
  expect(readFileSync(given.lockfile, 'utf8')).toContain('"warm": true\n');
  const args = ['generate', 'shard', '--model', 'smollm2-135m', '--target', 'cuda', '--lockfile', given.lockfile];
  const run = await cli(...args, '--arch', 'sm_90', '--out', join(temporaryFolder(), 'kernels'));
  expect(run.err).toBe(
    `decompress: tileTokens 16 (${given.lockfile}: Scripted GPU, driver 1.0, 1x1024, timed on inputs in a cache)\n`,
  );
});

test('a place where no lock file can be stops tune before it measures', async () => {
  const { tools, asked } = scripted(decoding);
  const lockfile = join(temporaryFolder(), 'none', 'kvforge.lock.json');
  await expect(tuneCommand(quietContext(), 'shard', options({ lockfile }), tools)).rejects.toThrow(
    `--lockfile: expected a place to write ${lockfile}, got a path through a folder that does not exist.`,
  );
  await expect(tuneCommand(quietContext(), 'shard', options({ lockfile: '' }), tools)).rejects.toThrow(
    '--lockfile: expected a path, got "".',
  );
  expect(asked).toEqual([]);
});

test('a stage without tunables is refused by name, before the device is opened', async () => {
  const { tools, asked } = scripted(decoding);
  await expect(tuneCommand(quietContext(), 'shard', options({ stages: 'copy' }), tools)).rejects.toThrow(
    /^--stages: expected one of attend, decompress, .*, got "copy"\. Names are matched exactly\.$/,
  );
  expect(asked).toEqual([]);
});

describe('on WebGPU', () => {
  const adapter: DeviceFacts = {
    ...{ name: 'Scripted adapter', driver: '1.0', sharedBytes: 32_768, clock: 'device' },
    features: ['subgroups', 'timestamp-query'],
  };
  const kernels = ['generate', 'shard', '--model', 'smollm2-135m', '--target', 'wgsl'];
  const out = () => ['--out', join(temporaryFolder(), 'kernels')];
  const wgsl = (parts: Partial<TuneOptions> = {}) => options({ device: 'webgpu', ...parts });

  test('the target is the one that targetFor gives, and the flags for it are told', async () => {
    const given = wgsl();
    const { tools } = scripted(decoding, adapter);
    const { json, text } = await tuneCommand(quietContext(), 'shard', given, tools);
    const device = { target: 'wgsl', features: new Set(adapter.features), identity: {}, limits: adapter } as const;
    expect((json as Document).target).toBe('wgsl 32768 subgroups');
    expect((json as Document).target).toBe(targetName(targetFor(device)));
    expect(text).toContain('generate and verify take them with --subgroups --workgroup-bytes 32768\n');
    const flags = ['--subgroups', '--workgroup-bytes', '32768'];
    const run = await cli(...kernels, ...flags, '--lockfile', given.lockfile, ...out());
    expect(run.err).toBe(`decompress: tileTokens 16 (${given.lockfile}: Scripted adapter, driver 1.0, 1x1024)\n`);
  });

  test.each<[Partial<TuneOptions>, string]>([
    [{ f16: true }, 'wgsl 16384 f16'],
    [{ subgroups: true }, 'wgsl 16384 subgroups'],
    [{ workgroupBytes: '16384' }, 'wgsl 16384'],
  ])('%j is all of the target', async (flags, target) => {
    const { tools } = scripted(decoding, adapter);
    const { json } = await tuneCommand(quietContext(), 'shard', wgsl(flags), tools);
    expect((json as Document).target).toBe(target);
  });

  test('workgroup storage that no device has is refused before the device is opened', async () => {
    const { tools, asked } = scripted(decoding, adapter);
    await expect(tuneCommand(quietContext(), 'shard', wgsl({ workgroupBytes: '16383' }), tools)).rejects.toThrow(
      '--workgroup-bytes: expected a whole number from 16384 to 1048576, got "16383".',
    );
    expect(asked).toEqual([]);
  });
});

describe('without a device, generate', () => {
  const emulated: DeviceFacts = { ...facts, name: 'CPU emulator of CUDA', driver: 'g++ 12' };
  const args = (lockfile: string) => [
    ...['generate', 'shard', '--model', 'smollm2-135m', '--target', 'cuda', '--arch', 'sm_90'],
    ...['--lockfile', lockfile, '--out', join(temporaryFolder(), 'kernels')],
  ];

  test('takes the winners of a GPU before those of the emulator, and says so', async () => {
    const given = options();
    // By name the emulator would come first.
    const slow = ({ tunables }: Variant) => (tunables.tileTokens === 8 ? timed(20) : timed(40));
    await tuneCommand(quietContext(), 'shard', given, scripted(slow, emulated).tools);
    const { err: alone } = await cli(...args(given.lockfile));
    expect(alone).toContain(
      `${given.lockfile}: CPU emulator of CUDA is no GPU: its times say nothing of one; --no-lockfile leaves them out\n`,
    );
    await tuneCommand(quietContext(), 'shard', given, scripted(decoding).tools);
    expect((await cli(...args(given.lockfile))).err).toBe(
      `${given.lockfile}: winners of Scripted GPU are taken, not those of CPU emulator of CUDA\n` +
        `decompress: tileTokens 16 (${given.lockfile}: Scripted GPU, driver 1.0, 1x1024)\n`,
    );
  });

  test('knows a software adapter by its driver', async () => {
    const given = options();
    const software = { ...facts, name: 'A subzero', driver: 'SwiftShader driver 5.0.0' };
    for (const own of [software, facts]) {
      await tuneCommand(quietContext(), 'shard', given, scripted(decoding, own).tools);
    }
    const { err } = await cli(...args(given.lockfile));
    expect(err).toContain('winners of Scripted GPU are taken, not those of A subzero\n');
  });

  test('knows the emulator by the name that it gives itself', async () => {
    const emulator = await EmulatorDevice.open();
    await emulator.close();
    expect(emulator.identity.name).toBe(emulated.name);
  });
});

test('a lock file that is damaged stops tune before it measures, and generate', async () => {
  const given = options();
  writeFileSync(given.lockfile, '{\n<<<<<<< HEAD\n');
  const { tools, asked } = scripted(decoding);
  await expect(tuneCommand(quietContext(), 'shard', given, tools)).rejects.toThrow(
    `${given.lockfile}:2: expected a file that is merged, got the conflict marker <<<<<<<.`,
  );
  expect(asked).toEqual([]);
  const generate = ['generate', 'shard', '--model', 'smollm2-135m', '--target', 'cuda', '--out'];
  const out = () => join(temporaryFolder(), 'kernels');
  const run = await cli(...generate, out(), '--lockfile', given.lockfile, '--json');
  expect([run.code, errorOf(run).code]).toEqual([2, 'invalid-input']);
  expect((await cli(...generate, out(), '--no-lockfile')).code).toBe(0);
  const missing = await cli(...generate, out(), '--lockfile', '/nowhere.json', '--json');
  expect(errorOf(missing).message).toBe('--lockfile: expected a file, got /nowhere.json, which does not exist');
});

test('an interruption leaves every finished time, and the next run goes on from them', async () => {
  // Times of this length are kept by no run before this one.
  const tokens = 128 + Math.floor(Math.random() * 400);
  const config = join(temporaryFolder(), 'config.json');
  const shape = { hidden_size: 32, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16 };
  const rest = { model_type: 'llama', num_hidden_layers: 1, rope_theta: 10000, max_position_embeddings: 8192 };
  writeFileSync(config, JSON.stringify({ ...shape, ...rest }));
  const lockfile = join(temporaryFolder(), 'kvforge.lock.json');
  const work = ['--stages', 'attend', '--shapes', `1x${tokens}`, '--lockfile', lockfile, '--json'];
  const args = ['tune', 'shard', '--model', config, '--device', 'webgpu', ...work];
  let stopped = false;
  const first = await spawned(args, (err, pid) => {
    if (stopped || !/us, best .*\n.*us, best/.test(err)) return;
    stopped = true;
    process.kill(pid, 'SIGINT');
  });
  expect(first.code).toBe(130);
  expect(errorOf(first).code).toBe('interrupted');
  expect(existsSync(lockfile)).toBe(false);
  const done = [...first.err.matchAll(/: (tileTokens \d+, splits \d+): .* us, best/g)].map(([, name]) => name);
  expect(done.length).toBeGreaterThanOrEqual(2);

  // The rest need not be measured for this.
  const second = await spawned([...args, '--budget', '10']);
  expect(second.code).toBe(0);
  const again = [...second.err.matchAll(/: (tileTokens \d+, splits \d+): .* us, best/g)].map(([, name]) => name);
  expect(again.filter((name) => done.includes(name))).toEqual([]);
  const { shapes } = documentOf(second) as unknown as Document;
  expect(shapes[0]!.tried).toBeGreaterThanOrEqual(done.length + again.length);
  expect(existsSync(lockfile)).toBe(true);
});
