import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { tablesOf } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { chosenSplits, defaultSplits } from '../../runtime/attendLaunches.js';
import { type CacheCapacity, KvCache } from '../../runtime/cache.js';
import type { Device, DeviceBuffer, Launch } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { makeCase } from '../stages/harness.js';
import { faultOf, generated, halves, model, proxied } from './cacheCase.js';

let device: Device;
beforeAll(async () => {
  device = await EmulatorDevice.open();
});
afterAll(() => device?.close());

const load = async (own: Device) => LoadedKernels.load(own, await generated(own));

function refusal(kernels: LoadedKernels, capacity: CacheCapacity): unknown {
  try {
    KvCache.open(kernels, capacity);
  } catch (error) {
    return error;
  }
  return undefined;
}

test('a cache that no kernel could bind is refused before anything is allocated', async () => {
  const capacity = { sequences: 3, tokens: 20, generated: 4 };
  const cache = KvCache.open(await load(device), capacity);
  const share = cache.layout.bytes;
  await cache.release();
  const allocated: string[] = [];
  const opened = async (bytesPerBinding: number) => {
    const own = proxied(device, {
      limits: { ...device.limits, bytesPerBinding },
      allocate: (label, bytes) => {
        allocated.push(label);
        return device.allocate(label, bytes);
      },
    });
    return refusal(await load(own), capacity);
  };
  const shares = await opened(3 * share - 1);
  expect(shares).toBeInstanceOf(KvforgeError);
  expect(shares).toMatchObject({
    code: 'does-not-fit',
    message: `cache: expected at most ${3 * share - 1} bytes (the largest binding of this device), got ${3 * share} (3 sequences of ${share}). Open the cache with fewer sequences or tokens.`,
  });
  // 256 levels, 64 rows of fine angles, the split of a tile of 128 positions, and one row of coarse angles.
  const tables = (256 + 64 * 16 + 128 * 4 + 8 * 4 * 2 + 16) * 4;
  expect(tables).toBeGreaterThan(3 * share);
  expect(await opened(tables - 4)).toMatchObject({
    code: 'does-not-fit',
    message: `tables: expected at most ${tables - 4} bytes (the largest binding of this device), got ${tables} (angles of 20 tokens). Open the cache with fewer sequences or tokens.`,
  });
  expect(allocated).toEqual([]);
  expect(await opened(tables)).toBeUndefined();
});

test.each(['cache', 'sequences', 'tables'])('nothing stays allocated when %s cannot be', async (failing) => {
  const live = new Set<string>();
  const own = proxied(device, {
    allocate: (label, bytes): DeviceBuffer => {
      if (label === failing) throw new Error('out of memory');
      const buffer = device.allocate(label, bytes);
      const free = buffer.release.bind(buffer);
      const release = () => {
        live.delete(label);
        free();
      };
      live.add(label);
      return Object.assign(buffer, { release });
    },
  });
  const fault = refusal(await load(own), { sequences: 2, tokens: 20, generated: 4 });
  expect(fault).toMatchObject({ message: 'out of memory' });
  expect([...live]).toEqual([]);
});

test('angles reach as far as a prompt, and kernels look up none beyond', async () => {
  const sizes = new Map<string, number>();
  const own = proxied(device, {
    allocate: (label, bytes) => {
      sizes.set(label, bytes);
      return device.allocate(label, bytes);
    },
  });
  const kernels = await load(own);
  // One row of the coarse table ends with the prompt, and the stream begins on the next one.
  const tokens = kernels.geometry.angleTile;
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 200 });
  expect(sizes.get('tables')).toBe((tablesOf(kernels.geometry).at(-1)!.offset + model.headDim) * 4);
  await cache.prefill(0, { keys: halves(tokens * 16, 1), values: halves(tokens * 16, 2), tokens });
  const more = 150;
  await cache.append(halves(more * 16, 3), halves(more * 16, 4), { tokens: more });
  expect((await cache.decompress(0)).tokens).toBe(tokens + more);
  const output = await cache.attend(halves(3 * 2 * 16, 5), { queries: 3 });
  expect(output.every(Number.isFinite)).toBe(true);
  await cache.release();
});

describe('launches', () => {
  const watch = async (limits: Partial<Device['limits']>, change: Partial<typeof model> = {}) => {
    const runs: (readonly Launch[])[] = [];
    const own = proxied(device, {
      limits: { ...device.limits, ...limits },
      run: (launches) => {
        runs.push(launches);
        return device.run(launches);
      },
    });
    const { geometry, ...rest } = await generated(own);
    const changed = { ...rest, geometry: { ...geometry, model: { ...model, ...change } } };
    return { runs, kernels: await LoadedKernels.load(own, changed) };
  };

  test('of an append take no more input at once than a kernel may bind', async () => {
    const capacity = { sequences: 2, tokens: 0, generated: 100 };
    const tokens = 100;
    const bits = halves(2 * tokens * 16, 6);
    const files: Uint8Array[] = [];
    // A step is 64 bytes, padded to 256.
    for (const { limits, steps } of [
      { limits: {}, steps: [100] },
      { limits: { bytesPerBinding: 2 ** 14 }, steps: [64, 36] },
    ]) {
      const { runs, kernels } = await watch(limits);
      const cache = KvCache.open(kernels, capacity);
      await cache.append(bits, bits, { tokens });
      expect(runs.map((launches) => launches.length)).toEqual(steps);
      files.push(await cache.save());
      await cache.release();
    }
    expect(files[1]).toEqual(files[0]);
  });

  test('of attention are run one work list at a time, and refused above a bound', async () => {
    const { runs, kernels } = await watch({});
    const cache = KvCache.open(kernels, { sequences: 2, tokens: 4, generated: 0 });
    const attend = (queries: number, splits?: number) =>
      cache.attend(new Uint16Array(2 * queries * 2 * 16), { queries, ...(splits === undefined ? {} : { splits }) });
    await attend(10000);
    expect(runs.map((launches) => launches.map(({ grid }) => grid[0]))).toEqual([[16384], [3616]]);
    // Of a longer sequence a run takes fewer rows, so that it ends before a time-out.
    const long = KvCache.open(kernels, { sequences: 1, tokens: 16000, generated: 0 });
    runs.length = 0;
    await long.attend(new Uint16Array(600 * 2 * 16), { queries: 600, splits: 2 });
    expect(runs.map((launches) => launches.map(({ grid }) => grid[0]))).toEqual([[524], [524], [152]]);
    await long.release();
    const before = runs.length;
    expect(await faultOf(attend(2049, 1024))).toBe(
      'queries: expected at most 4194304 work items, got 4196352 (2 sequences x 2049 queries x 1 KV heads x 1024 splits). Attend with fewer queries a call, or leave splits out.',
    );
    expect(runs.length).toBe(before);
    await cache.release();
  });

  test('of attention split less where there are many queries', () => {
    const g = { kvHeads: 8 } as Geometry;
    const splits = [1, 64, 1000, 65535].map((rows) => defaultSplits(g, rows, 100_000));
    expect(splits).toEqual([64, 32, 2, 1]);
  });

  test('of attention fill the multiprocessors of a device that tells their number, once', async () => {
    const g = { kvHeads: 8 } as Geometry;
    const splits = [1, 4, 16, 64].map((rows) => defaultSplits(g, rows, 100_000, 132));
    expect(splits).toEqual([16, 4, 1, 1]);
    expect(defaultSplits(g, 1, 1000, 132)).toBe(4);
    const loaded = await load(proxied(device, { identity: { ...device.identity, multiprocessors: 3 } }));
    // Two blocks of this small kernel fit a multiprocessor; each sequence has one KV head or more.
    const heads = loaded.geometry.kvHeads;
    expect([1, 2, 4].map((rows) => chosenSplits(loaded, rows, 100_000))).toEqual(
      [1, 2, 4].map((rows) => Math.max(1, Math.floor(6 / (rows * heads)))),
    );
  });

  test('of attention count on one block a multiprocessor where its threads have all registers', async () => {
    const hopper = { language: 'cuda', arch: 'sm_90a', tensorCores: true } as const;
    const wide = makeCase({ heads: 4, kvHeads: 1, headDim: 64, rank: 32, bits: 4, sinks: 2, window: 3 });
    const own = proxied(device, { identity: { ...device.identity, multiprocessors: 3 } });
    const loaded = await LoadedKernels.load(own, await generate(wide.scheme, wide.model, hopper), ['attend']);
    // Its shared memory would let two blocks in.
    const { threads, sharedBytes } = loaded.launch('attend', { workItems: 0 }, {}).kernel.descriptor;
    expect([threads, sharedBytes.dynamic < device.limits.sharedBytes / 2]).toEqual([512, true]);
    expect(chosenSplits(loaded, 1, 100_000)).toBe(3);
  });

  test.each([
    { slidingWindow: undefined, splits: 4 },
    { slidingWindow: 300, splits: 2 },
    { slidingWindow: 8, splits: 1 },
    { slidingWindow: 5000, splits: 4 },
  ])('of attention split no more than a sliding window of $slidingWindow shows', async ({ slidingWindow, splits }) => {
    const { runs, kernels } = await watch(
      {},
      {
        kinds: [{ rope: model.rope, ...(slidingWindow === undefined ? {} : { slidingWindow }) }],
      },
    );
    const cache = KvCache.open(kernels, { sequences: 1, tokens: 4, generated: 1000 });
    await cache.append(halves(1000 * 16, 7), halves(1000 * 16, 8), { tokens: 1000 });
    await cache.attend(halves(2 * 16, 9));
    expect(runs.at(-1)!.map(({ grid }) => grid[0])).toEqual([splits]);
    await cache.release();
  });
});
