import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { generate } from '../../../codegen/generate.js';
import { generateFp16 } from '../../../codegen/generateFp16.js';
import { KvforgeError } from '../../../dsl/errors.js';
import { presetModel } from '../../../dsl/model.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import { CompressedAttention } from '../../../runtime/bench/compressed.js';
import { type Contender, copiesFor, WriteQueue } from '../../../runtime/bench/contender.js';
import type { CudnnAttention } from '../../../runtime/bench/cudnn.js';
import { benchDecode } from '../../../runtime/bench/decode.js';
import { benchEncode, encodePrompt } from '../../../runtime/bench/encode.js';
import { ExactAttention } from '../../../runtime/bench/exact.js';
import { measureReadBandwidth } from '../../../runtime/bench/readBandwidth.js';
import type { Device, DeviceBuffer, Launch } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { AttendBench } from '../../../runtime/tune/cacheBench.js';
import { model as narrow, scheme as quick, generated as quickKernels } from '../cacheCase.js';

const model = presetModel('smollm2-135m');
const target = { language: 'cuda', arch: 'sm_80', tensorCores: true } as const;
const shape = { sequences: 3, tokens: 100 };
const common = { shape, seed: 4, bar: 2e-3, tunables: {} };

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'full' });
});
afterAll(() => device.close());

describe('what is timed', () => {
  test('of a scheme with allocated widths and weights is right, and counts its bytes', async () => {
    const kernels = await LoadedKernels.load(device, await generate(shardPlus, model, target), ['attend']);
    const decoded = new Map();
    const contender = await CompressedAttention.open(kernels, { ...common, decoded });
    const { maxError, what } = await contender.check(2);
    expect(maxError).toBeLessThan(2e-3);
    expect([...decoded.keys()]).toEqual([100]);
    expect((await contender.check(1)).maxError).toBeLessThan(2e-3);
    // Seed 4 of 3 KV heads: head 1, with 3 query heads of 64 channels in both sequences.
    expect(what).toBe('384 outputs: query heads of KV head 1, sequences 0 and 2');
    const { bytes, bytesRead, copies, splits, operations } = contender;
    expect({ copies, splits }).toEqual({ copies: 1, splits: [1, 2] });
    expect(bytesRead).toBeLessThan(bytes);
    expect(bytesRead).toBeGreaterThan(0.95 * bytes);
    // 100 tokens of 9 heads and 64 channels, 4 operations each; 32 of them rebuilt from rank 32 to 192 channels.
    expect(kernels.geometry).toMatchObject({ rank: 32 });
    expect(operations).toBe(3 * (100 * 9 * 64 * 4 + 32 * 32 * 192 * 2));
    contender.release();
  });

  test('runs over copies of its own where the device has a cache', async () => {
    const identity = { ...device.identity, cacheBytes: 20_000 };
    const bound = new Proxy(device, {
      get: (_, name) => {
        const member = Reflect.get(device, name) as unknown;
        if (name === 'identity') return identity;
        return typeof member === 'function' ? member.bind(device) : member;
      },
    });
    const kernels = await LoadedKernels.load(bound, await quickKernels(device));
    const small = { ...common, shape: { sequences: 2, tokens: 64 }, decoded: new Map() };
    const contender = await CompressedAttention.open(kernels, small);
    expect(contender.copies).toBe(Math.ceil(80_000 / contender.bytesRead));
    expect(contender.cold).toBe(true);
    expect(contender.copies).toBeGreaterThan(3);
    const owned: DeviceBuffer[] = [];
    const lists = contender.lists(2, owned);
    expect(lists).toHaveLength(contender.copies);
    await device.run(lists.flat());
    const outputs = owned.filter(({ label }) => label === 'output');
    const read = await Promise.all(outputs.map((output) => device.read(output)));
    // Other memory, the same contents.
    for (const output of read) expect(output).toEqual(read[0]);
    const ranges = lists.map(([launch]) => launch!.bindings);
    expect(new Set(ranges.map(({ tables }) => tables!.buffer)).size).toBe(contender.copies);
    expect(new Set(ranges.map(({ sequences }) => sequences!.offset)).size).toBe(contender.copies);
    expect((await contender.check(2)).maxError).toBeLessThan(2e-3);
    for (const buffer of owned) buffer.release();
    contender.release();
  });

  test('runs over as many copies as a sliding window leaves to read', async () => {
    const identity = { ...device.identity, cacheBytes: 20_000 };
    const bound = new Proxy(device, {
      get: (_, name) => {
        const member = Reflect.get(device, name) as unknown;
        if (name === 'identity') return identity;
        return typeof member === 'function' ? member.bind(device) : member;
      },
    });
    const sliding = { ...narrow, kinds: narrow.kinds.map((kind) => ({ ...kind, slidingWindow: 16 })) };
    const small = { ...common, shape: { sequences: 1, tokens: 400 } };
    const own = await LoadedKernels.load(bound, await generate(quick, sliding, target), ['attend']);
    const exactly = await LoadedKernels.load(bound, await generateFp16(sliding, target));
    const contenders = [
      await CompressedAttention.open(own, { ...small, decoded: new Map() }),
      await ExactAttention.open(exactly, small),
    ];
    for (const contender of contenders) {
      expect(contender.bytesRead).toBeLessThan(contender.bytes / 2);
      expect(contender.copies).toBe(Math.ceil(80_000 / contender.bytesRead));
      expect(contender.cold).toBe(true);
      expect((await contender.check(1)).maxError).toBeLessThan(2e-3);
      contender.release();
    }
    const bench = new AttendBench(own, small.shape);
    const prepared = await bench.prepare(own, { tunables: {} });
    expect(prepared).toMatchObject({ bytes: contenders[0]!.bytesRead, cold: true });
    expect(prepared.lists).toHaveLength(Math.ceil(40_000 / prepared.bytes));
    prepared.release();
    bench.release();
  });

  test('of fp16 is right, and counts its bytes', async () => {
    const kernels = await LoadedKernels.load(device, await generateFp16(model, target));
    const contender = await ExactAttention.open(kernels, common);
    expect((await contender.check(1)).maxError).toBeLessThan(2e-3);
    expect(contender.bytesRead).toBe(3 * 100 * 192 * 2 * 2);
    expect(contender.operations).toBe(3 * 100 * 9 * 64 * 4);
    contender.release();
  });

  test('of an encode decodes to the prompt, nearly', async () => {
    const kernels = await LoadedKernels.load(device, await quickKernels(device));
    const prompt = encodePrompt(kernels.geometry, 64, 3);
    expect(encodePrompt(kernels.geometry, 64, 3)).toEqual(prompt);
    const { keysError, valuesError, timing } = await benchEncode(kernels, prompt, { seed: 3, samples: 2 });
    // 16 directions of 16 at 4 bits, and 16 entries for 4 channels.
    expect(keysError).toBeGreaterThan(0);
    expect(keysError).toBeLessThan(0.2);
    expect(valuesError).toBeGreaterThan(0.1);
    expect(valuesError).toBeLessThan(0.9);
    expect(timing.samples).toBe(2);
  });

  test('of reading gives a rate', async () => {
    const { bytesPerSecond, bytes, timing } = await measureReadBandwidth(device, 2);
    expect(bytes).toBe(2 ** 20);
    expect(bytesPerSecond).toBeCloseTo((bytes / timing.us) * 1e6, 3);
  });
});

test('a kernel that computes something else is found wrong', async () => {
  const kernels = await generateFp16(model, target);
  const wrong = new Map(
    [...kernels.files].map(([name, text]) => [
      name,
      text.replace('constexpr float SCORE_SCALE = ', 'constexpr float SCORE_SCALE = 1.5f * '),
    ]),
  );
  expect(wrong.get('attend_fp16.cu')).not.toBe(kernels.files.get('attend_fp16.cu'));
  const contender = await ExactAttention.open(await LoadedKernels.load(device, { ...kernels, files: wrong }), common);
  expect((await contender.check(1)).maxError).toBeGreaterThan(2e-3);
  contender.release();
});

test('a kernel that writes nothing is found wrong, whatever memory held before', async () => {
  const kernels = await LoadedKernels.load(device, await generateFp16(model, target));
  const contender = await ExactAttention.open(kernels, common);
  expect((await contender.check(1)).maxError).toBeLessThan(2e-3);
  const run = vi.spyOn(device, 'run').mockImplementation(async () => {});
  expect((await contender.check(1)).maxError).toBe(Number.POSITIVE_INFINITY);
  run.mockRestore();
  contender.release();
});

test('copies rotate through four times the cache, and are one where no cache is known', () => {
  const copies = (read: number, cacheBytes?: number, held = read) => copiesFor({ read, held }, cacheBytes);
  expect(copies(1000, 600)).toEqual({ copies: 3, cold: true });
  expect(copies(1_000_000, 1000)).toEqual({ copies: 1, cold: true });
  // What is held beside it is not read, and pushes nothing out of the cache.
  expect(copies(1000, 600, 1e6)).toEqual({ copies: 3, cold: true });
  expect(copies(1000)).toEqual({ copies: 1, cold: false });
  // As many as are worth it: of 512, twice the cache may remain.
  expect(copies(1, 1e9)).toEqual({ copies: 512, cold: false });
  expect(copies(1000, 250_000)).toEqual({ copies: 512, cold: true });
  expect(copies(1e6, 6e7, 2 ** 32)).toEqual({ copies: 4, cold: false });
});

test('writes wait for the device after each 256 MiB', async () => {
  let waits = 0;
  const queue = new WriteQueue(async () => void waits++);
  for (let i = 0; i < 5; i++) await queue.wrote(2 ** 27);
  expect(waits).toBe(2);
});

describe('a shape', () => {
  const launch = (name: string) => ({ name }) as unknown as Launch;
  /** A device on which every launch takes what its name says. */
  const planned = {
    clock: 'host',
    identity: { name: 'Fake GPU', driver: '1' },
    time: async (lists: readonly (readonly { name: string }[])[], { samples }: { samples: number }) =>
      Array.from({ length: samples }, () => Number(lists[0]![0]!.name)),
  } as unknown as Device;

  function contender(name: string, us: Readonly<Record<number, number>>): Contender & { released: boolean } {
    return {
      name,
      ...{ bytes: 10, bytesRead: 10, operations: 10, copies: 1, cold: false, tunables: {}, released: false },
      splits: Object.keys(us).map(Number),
      lists: (splits) => [[launch(String(us[splits]))]],
      check: async () => ({ maxError: 0, bar: 1, what: 'nothing' }),
      release() {
        this.released = true;
      },
    };
  }

  const bench = { device: planned, model, cudnn: undefined, seed: 1, samples: 5, progress: () => {} };

  test('takes the number of splits that is faster by more than noise', async () => {
    const near = contender('near', { 4: 100, 8: 99.5, 16: 120 });
    const far = contender('far', { 4: 100, 8: 90, 16: 89.5 });
    const openers = [near, far].map((each) => ({ name: each.name, open: async () => each }));
    const { measured } = await benchDecode({ ...bench, openers }, shape);
    expect(measured.map(({ splits, timing }) => [splits, timing.us])).toEqual([
      [4, 100],
      [8, 90],
    ]);
    expect(measured[0]!.sweep).toEqual([
      { splits: 4, us: 100 },
      { splits: 8, us: 99.5 },
      { splits: 16, us: 120 },
    ]);
    expect([near.released, far.released]).toEqual([true, true]);
  });

  test('leaves out what the device has no room for, and says so', async () => {
    const parts = { at: "buffer 'cache'", expected: 'at most 5 bytes', received: '6', hint: 'Use less.' };
    const one = contender('one', { 1: 7 });
    const openers = [
      { name: 'large', open: () => Promise.reject(new KvforgeError('does-not-fit', parts)) },
      { name: 'one', open: async () => one },
    ];
    const { measured, skipped } = await benchDecode({ ...bench, openers }, shape);
    expect(measured.map(({ scheme }) => scheme)).toEqual(['one']);
    expect(skipped).toEqual([
      { scheme: 'large', stage: 'attend', shape: '3x100', reason: "buffer 'cache': expected at most 5 bytes, got 6" },
    ]);
  });

  test('is measured with fewer splits where more have no room', async () => {
    const parts = { at: "buffer 'partials'", expected: 'at most 5 bytes', received: '6', hint: 'Use less.' };
    const full = (least: number): Contender => {
      const made = contender('one', { 4: 100, 8: 50 });
      const lists: Contender['lists'] = (splits, owned) => {
        if (splits >= least) throw new KvforgeError('does-not-fit', parts);
        return made.lists(splits, owned);
      };
      return { ...made, lists };
    };
    const run = (least: number) =>
      benchDecode({ ...bench, openers: [{ name: 'one', open: async () => full(least) }] }, shape);
    expect((await run(8)).measured).toMatchObject([{ splits: 4, sweep: [{ splits: 4, us: 100 }] }]);
    const none = await run(0);
    expect(none.measured).toEqual([]);
    expect(none.skipped).toMatchObject([{ reason: "buffer 'partials': expected at most 5 bytes, got 6" }]);
  });

  test('goes on without a cuDNN that fails half-way', async () => {
    let calls = 0;
    const cudnn = {
      name: 'cudnn',
      prepare: async () => ({ copies: 1, bytes: 10, maxError: 0 }),
      sample: async (count: number) => {
        calls++;
        if (calls === 3) throw new Error('it crashed');
        return new Array<number>(count).fill(1);
      },
    } as unknown as CudnnAttention;
    const openers = [{ name: 'one', open: async () => contender('one', { 1: 7 }) }];
    const { measured, skipped } = await benchDecode({ ...bench, cudnn, openers }, shape);
    expect(measured.map(({ scheme, timing }) => [scheme, timing.samples])).toEqual([['one', 5]]);
    expect(skipped).toEqual([{ scheme: 'cudnn', stage: 'attend', shape: '3x100', reason: 'it crashed' }]);
    expect(calls).toBe(3);
  });

  test('ends with any other fault, and frees what was prepared', async () => {
    const one = contender('one', { 1: 7 });
    const openers = [
      { name: 'one', open: async () => one },
      { name: 'lost', open: () => Promise.reject(new Error('lost')) },
    ];
    await expect(benchDecode({ ...bench, openers }, shape)).rejects.toThrow('lost');
    expect(one.released).toBe(true);
  });
});
