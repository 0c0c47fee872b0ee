import { describe, expect, test } from 'vitest';
import type { KernelText } from '../../../runtime/device.js';
import { EmulatorDevice, type EmulatorOptions } from '../../../runtime/emulator/emulator.js';
import { faultOf } from '../conformance/bench.js';
import { type Argument, launch, reportOf } from './harness.js';
import { kernel } from './kernels.js';

type Grid = readonly [number, number, number];
type Place = Pick<EmulatorOptions, 'order' | 'seed' | 'checks'>;

async function on<T>(options: Place, use: (device: EmulatorDevice) => Promise<T>): Promise<T> {
  const device = await EmulatorDevice.open(options);
  try {
    return await use(device);
  } finally {
    await device.close();
  }
}

/** Words of the binding `index` after one launch. Without checks, so that a race shows by what it does. */
function outcome(
  options: Place,
  text: KernelText,
  args: readonly Argument[],
  grid: Grid,
  index = 0,
): Promise<number[]> {
  return on({ checks: 'none', ...options }, async (device) => [
    ...new Uint32Array((await launch(device, text, args, grid))[index]!),
  ]);
}

const zeros = (length: number) => new Uint32Array(length);

describe('the order itself', () => {
  const arrivals = kernel(
    'arrivals',
    ['u32 count', 'u32 blocks', 'u32 threads'],
    `if (blockIdx.x == 0) threads[atomicAdd(&count[0], 1u)] = threadIdx.x;
if (threadIdx.x == 0) blocks[atomicAdd(&count[1], 1u)] = blockIdx.x;`,
    { threads: 70 },
  );
  const seen = (options: Place, index: number) => outcome(options, arrivals, [zeros(2), 5, 70], [5, 1, 1], index);
  const upTo = (end: number, from = 0) => Array.from({ length: end - from }, (_, i) => from + i);

  test('ascending and descending, together or apart', async () => {
    expect(await seen({}, 1)).toEqual([0, 1, 2, 3, 4]);
    expect(await seen({}, 2)).toEqual(upTo(70));
    expect(await seen({ order: 'descending' }, 1)).toEqual([4, 3, 2, 1, 0]);
    expect(await seen({ order: 'descending' }, 2)).toEqual(upTo(70).reverse());
    const mixed = { order: { blocks: 'descending' } } as const;
    expect(await seen(mixed, 1)).toEqual([4, 3, 2, 1, 0]);
    expect(await seen(mixed, 2)).toEqual(upTo(70));
    expect(await seen({ order: { threads: 'descending' } }, 1)).toEqual([0, 1, 2, 3, 4]);
  });

  test('shuffled: the same by the same seed, another by another', async () => {
    const drawn = (seed: number, index: number) => seen({ order: 'shuffled', seed }, index);
    for (const index of [1, 2]) {
      const first = await drawn(3, index);
      expect(await drawn(3, index)).toEqual(first);
      expect(await drawn(4, index)).not.toEqual(first);
      expect([...first].sort((a, b) => a - b)).toEqual(upTo(index === 1 ? 5 : 70));
    }
  });

  test('starved: one warp, and one lane of every warp, run when no other can', async () => {
    const threads = (seed: number) => seen({ order: { threads: 'starved' }, seed }, 2);
    const without = (lanes: number[], left: number) => [...lanes.filter((lane) => lane !== left), left];
    expect(await threads(1)).toEqual([
      ...without(upTo(64, 32), 33),
      ...without(upTo(70, 64), 65),
      ...without(upTo(32), 1),
    ]);
    expect(await threads(69)).toEqual([...without(upTo(32), 5), ...without(upTo(64, 32), 37), ...upTo(70, 64)]);
  });

  test('starved: one block arrives last, or is the first to arrive and the last to go on', async () => {
    const text = kernel(
      'passing',
      ['u32 count', 'u32 blocks', 'u32 passed'],
      'blocks[atomicAdd(&count[0], 1u)] = blockIdx.x;\npassed[atomicAdd(&count[1], 1u)] = blockIdx.x;',
      { threads: 1 },
    );
    const orders = async (seed: number) => {
      const place = { order: { blocks: 'starved' }, seed } as const;
      return [1, 2].map((index) => outcome(place, text, [zeros(2), 4, 4], [4, 1, 1], index));
    };
    expect(await Promise.all(await orders(2 * 2 + 1))).toEqual([
      [0, 1, 3, 2],
      [0, 1, 3, 2],
    ]);
    expect(await Promise.all(await orders(2 * 2))).toEqual([
      [2, 0, 1, 3],
      [0, 1, 3, 2],
    ]);
  });
});

describe('kernels that are wrong in one order only', () => {
  const orders = {
    ascending: { order: 'ascending' },
    descending: { order: 'descending' },
    'warp 0 starved': { order: { threads: 'starved' }, seed: 0 },
    'warp 1 starved': { order: { threads: 'starved' }, seed: 40 },
    'block 0 held before its atomic': { order: { blocks: 'starved' }, seed: 1 },
    'block 0 held after its atomic': { order: { blocks: 'starved' }, seed: 0 },
    'block 3 held before its atomic': { order: { blocks: 'starved' }, seed: 7 },
  } as const satisfies Record<string, Place>;

  /** The orders in which a kernel does not give what it should. */
  async function wrongIn(text: KernelText, args: readonly Argument[], grid: Grid, expected: number[]) {
    const wrong: string[] = [];
    for (const [name, options] of Object.entries(orders)) {
      const words = await outcome(options, text, args, grid);
      if (words.some((word, i) => word !== expected[i])) wrong.push(name);
    }
    return wrong;
  }

  test('warp 0 is taken to run first', async () => {
    const text = kernel(
      'first_warp',
      ['u32 b'],
      '__shared__ u32 told;\nif (threadIdx.x == 0) told = 7;\nb[threadIdx.x] = told;',
      { threads: 64 },
    );
    const wrong = await wrongIn(text, [64], [1, 1, 1], new Array(64).fill(7));
    expect(wrong).toEqual(['descending', 'warp 0 starved']);
  });

  test('warp 1 is taken to run before warp 2', async () => {
    const text = kernel(
      'middle_warp',
      ['u32 b'],
      '__shared__ u32 told;\nif (threadIdx.x == 32) told = 7;\nif (threadIdx.x >= 64) b[threadIdx.x - 64] = told;',
      { threads: 96 },
    );
    expect(await wrongIn(text, [32], [1, 1, 1], new Array(32).fill(7))).toEqual(['descending', 'warp 1 starved']);
  });

  test('the last block is taken to end last', async () => {
    const text = kernel(
      'last_block',
      ['u32 sum', 'u32 parts'],
      `atomicAdd(&parts[blockIdx.x], 1u);
if (blockIdx.x == gridDim.x - 1) for (u32 i = 0; i < gridDim.x; ++i) sum[0] += parts[i];`,
      { threads: 1 },
    );
    const wrong = await wrongIn(text, [zeros(1), zeros(4)], [4, 1, 1], [4]);
    expect(wrong).toEqual(['descending', 'block 0 held before its atomic']);
  });

  test('block 0 is taken to end last', async () => {
    const text = kernel(
      'first_block',
      ['u32 sum', 'u32 parts'],
      `atomicAdd(&parts[blockIdx.x], 1u);
if (blockIdx.x == 0) for (u32 i = 0; i < gridDim.x; ++i) sum[0] += parts[i];`,
      { threads: 1 },
    );
    const wrong = await wrongIn(text, [zeros(1), zeros(4)], [4, 1, 1], [4]);
    expect(wrong).toEqual(['ascending', 'warp 0 starved', 'warp 1 starved', 'block 3 held before its atomic']);
  });

  test('the first to arrive is taken to initialise before the others add: only blocks that interleave show it', async () => {
    const text = kernel(
      'initialised',
      ['u32 sum', 'u32 count'],
      'if (atomicAdd(&count[0], 1u) == 0) sum[0] = 0;\natomicAdd(&sum[0], 1u);',
      { threads: 1 },
    );
    const wrong = await wrongIn(text, [zeros(1), zeros(1)], [4, 1, 1], [4]);
    expect(wrong).toEqual(['block 0 held after its atomic']);
  });

  test('a count that is read, then written: only blocks that interleave show it', async () => {
    const atomic = kernel('lost', ['u32 count'], 'const u32 n = count[0];\natomicExch(&count[0], n + 1);', {
      threads: 1,
    });
    expect(await wrongIn(atomic, [zeros(1)], [4, 1, 1], [4])).toEqual([
      'block 0 held before its atomic',
      'block 3 held before its atomic',
    ]);
    const plain = kernel('lost_plain', ['u32 count'], 'const u32 n = count[0];\n__syncthreads();\ncount[0] = n + 1;', {
      threads: 1,
    });
    // Without atomics, a block is held at its first barrier.
    expect(await wrongIn(plain, [zeros(1)], [4, 1, 1], [4])).toEqual([
      'block 0 held before its atomic',
      'block 0 held after its atomic',
      'block 3 held before its atomic',
    ]);
  });
});

describe('a right kernel', () => {
  /** The last block to arrive merges what all left; static and dynamic shared memory are in use when a block is held. */
  const merge = kernel(
    'merge',
    ['u32 sum', 'u32 parts', 'u32 count'],
    `__shared__ u32 own[64];
__shared__ u32 last;
u32* const copy = reinterpret_cast<u32*>(shared_memory);
own[threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
copy[threadIdx.x] = own[threadIdx.x];
__syncthreads();
parts[blockIdx.x * 64 + threadIdx.x] = own[63 - threadIdx.x];
__threadfence();
__syncthreads();
if (threadIdx.x == 0) last = atomicAdd(&count[0], 1u) == gridDim.x - 1 ? 1 : 0;
__syncthreads();
sum[64 + blockIdx.x * 64 + threadIdx.x] = own[63 - threadIdx.x] + copy[63 - threadIdx.x];
if (last == 0) return;
__threadfence();
u32 total = 0;
for (u32 i = 0; i < gridDim.x; ++i) total += parts[i * 64 + threadIdx.x];
sum[threadIdx.x] = total;
if (threadIdx.x == 0) atomicExch(&count[0], 0u);`,
    { threads: 64, dynamic: 256 },
  );
  const expected = Array.from({ length: 5 * 64 }, (_, i) => {
    const [row, at] = [Math.floor(i / 64), 63 - (i % 64)];
    return row === 0 ? 4 * at + 6 * 64 : 2 * ((row - 1) * 64 + at);
  });

  test.each(['full', 'none'] as const)('gives the same in every order, with checks: %s', async (checks) => {
    const places: Place[] = [
      { order: 'ascending' },
      { order: 'descending' },
      ...[1, 2, 3].map((seed) => ({ order: 'shuffled', seed }) as const),
      ...Array.from({ length: 8 }, (_, seed) => ({ order: 'starved', seed }) as const),
      { order: { blocks: 'starved', threads: 'shuffled' }, seed: 5 },
      { order: { blocks: 'starved', threads: 'descending' }, seed: 6 },
    ];
    for (const place of places) {
      const words = await outcome({ ...place, checks }, merge, [5 * 64, 4 * 64, zeros(1)], [4, 1, 1]);
      expect(words, JSON.stringify(place)).toEqual(expected);
    }
  });

  test('a grid of one block, and one whose held block never comes to an atomic', async () => {
    const text = kernel(
      'some_atomics',
      ['u32 b', 'u32 count'],
      'b[blockIdx.x] = 1;\nif (blockIdx.x == 1) atomicAdd(&count[0], 1u);',
      { threads: 1 },
    );
    for (const seed of [0, 1, 2, 3]) {
      const starved = { order: 'starved', seed, checks: 'full' } as const;
      expect(await outcome(starved, text, [1, zeros(1)], [1, 1, 1])).toEqual([1]);
      expect(await outcome(starved, text, [2, zeros(1)], [2, 1, 1])).toEqual([1, 1]);
    }
  });
});

describe('checks of a block that was held', () => {
  const counted = (entry: string, second: string): KernelText =>
    kernel(
      entry,
      ['u32 parts', 'u32 count', 'u32 sum'],
      `atomicAdd(&count[0], 1u);
parts[blockIdx.x] = 1;
__threadfence();
${second}
if (blockIdx.x == 0) sum[0] = parts[1];`,
      { threads: 1 },
    );
  const report = (text: KernelText) =>
    on({ order: 'starved', seed: 0 }, (device) => reportOf(device, text, [2, zeros(2), 1], [2, 1, 1]));

  test('an atomic before the others published orders nothing that they did after it', async () => {
    expect(await report(counted('ordered', 'atomicAdd(&count[1], 1u);'))).toBe('no error');
    expect(await report(counted('early', 'if (blockIdx.x == 1) atomicAdd(&count[1], 1u);'))).toBe(
      'early.cu:7: expected no unordered use of bytes 4..7 of parts by two blocks, got a read by thread 0 of block (0, 0, 0) of early and a write by block (1, 0, 0) at early.cu:4. Use atomics, publish by __threadfence() and an atomic, or split the launch.',
    );
  });

  test('its shared memory is its own: what it wrote is known, what others wrote is not', async () => {
    const text = (entry: string, read: string) =>
      kernel(
        entry,
        ['u32 out', 'u32 count'],
        `__shared__ u32 tile[8];
tile[blockIdx.x] = blockIdx.x;
atomicAdd(&count[0], 1u);
out[blockIdx.x] = tile[${read}];`,
        { threads: 1 },
      );
    const report = (kernelText: KernelText) =>
      on({ order: 'starved', seed: 5 }, (device) => reportOf(device, kernelText, [4, zeros(1)], [4, 1, 1]));
    expect(await report(text('own_tile', 'blockIdx.x'))).toBe('no error');
    expect(await report(text('other_tile', 'blockIdx.x == 2 ? 3 : blockIdx.x'))).toBe(
      'other_tile.cu:6: expected a read of bytes written before, got a read of bytes 12..15 of shared tile, never written, by thread 0 of block (2, 0, 0) of other_tile. Write them first in the same block; after a cp.async, wait for its group.',
    );
  });
});

describe('options that no device has', () => {
  /** What a caller without types could hand over. */
  const refused = (options: object) => faultOf(() => EmulatorDevice.open(options as EmulatorOptions));
  const orders = "'ascending', 'descending', 'shuffled' or 'starved'";

  test.each([
    [{ checks: 'zzz' }, "checks: expected 'full' or 'none', got 'zzz'"],
    [{ checks: null }, "checks: expected 'full' or 'none', got null"],
    [{ checks: true }, "checks: expected 'full' or 'none', got true"],
    [{ order: 'zzz' }, `order: expected ${orders}, got 'zzz'`],
    [{ order: 'toString' }, `order: expected ${orders}, got 'toString'`],
    [{ order: null }, `order: expected ${orders}, got null`],
    [{ order: { blocks: 'zzz' } }, `order.blocks: expected ${orders}, got 'zzz'`],
    [{ order: { threads: 4 } }, `order.threads: expected ${orders}, got 4`],
    [{ seed: -1 }, 'seed: expected a whole number from 0 on, got -1'],
    [{ seed: 0.5 }, 'seed: expected a whole number from 0 on, got 0.5'],
    [{ seed: 'zzz' }, "seed: expected a whole number from 0 on, got 'zzz'"],
    [{ timeoutMs: 0 }, 'timeoutMs: expected a whole number from 1 on, got 0'],
  ])('%j', async (options, told) => {
    expect(await refused(options)).toBe(`wrong-use: emulator option ${told}. Leave it out for the default.`);
  });
});
