import { getFloat16, setFloat16 } from '@petamoriken/float16';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EmulatorDevice, type EmulatorOptions } from '../../../runtime/emulator/emulator.js';
import { launch, noise } from './harness.js';
import * as kernels from './kernels.js';

const view = new DataView(new ArrayBuffer(4));
function toHalf(value: number): number {
  setFloat16(view, 0, value, true);
  return view.getUint16(0, true);
}
function fromHalf(bits: number): number {
  view.setUint16(0, bits, true);
  return getFloat16(view, 0, true);
}
const isNaNHalf = (bits: number): boolean => (bits & 0x7fff) > 0x7c00;

const modes: readonly EmulatorOptions[] = [
  { checks: 'full' },
  { checks: 'none' },
  { checks: 'full', order: 'descending' },
  { checks: 'full', order: 'shuffled', seed: 11 },
];

describe.each(modes)('kernels run under %o', (options) => {
  let device: EmulatorDevice;
  beforeAll(async () => {
    device = await EmulatorDevice.open(options);
  }, 120_000);
  afterAll(async () => device.close());

  test('threads add vectors', async () => {
    const a = Float32Array.from({ length: 96 }, (_, i) => i);
    const [, , c] = await launch(device, kernels.add, [a, a.map((x) => x * 10), 96], [3, 1, 1]);
    expect([...new Float32Array(c!)]).toEqual([...a.map((x) => x * 11)]);
  });

  test('blocks reduce by shuffles, shared memory and a partial mask', async () => {
    const a = Float32Array.from({ length: 768 }, (_, i) => i);
    const [, sum] = await launch(device, kernels.reduce, [a, 3], [3, 1, 1]);
    expect([...new Float32Array(sum!)]).toEqual([32640, 98176, 163712]);
  });

  test('shuffles and votes move what CUDA says', async () => {
    const [out] = await launch(device, kernels.shuffles, [256]);
    const words = new Uint32Array(out!);
    const row = (index: number): number[] => [...words.slice(index * 32, index * 32 + 32)];
    const lanes = Array.from({ length: 32 }, (_, lane) => lane);
    expect(row(0)).toEqual(lanes.map(() => 5));
    expect(row(1)).toEqual(lanes.map((t) => (t & ~7) + 3));
    expect(row(2)).toEqual(lanes.map((t) => (t < 2 ? t : t - 2)));
    expect(row(3)).toEqual(lanes.map((t) => (t % 16 < 13 ? t + 3 : t)));
    expect(row(4)).toEqual(lanes.map(() => 0x49249249));
    expect(row(5)).toEqual(lanes.map(() => 1));
    expect(row(6)).toEqual(lanes.map((t) => (t < 16 ? 0xff00 : 0)));
    expect(row(7)).toEqual(lanes.map((t) => t ^ 31));
  });

  test('mma of halves is the matrix product, in the fragments of the PTX ISA', async () => {
    const next = noise(1);
    const a = new Uint16Array(256).map(() => toHalf(next()));
    const b = new Uint16Array(128).map(() => toHalf(next() * 3));
    const c = new Float32Array(128).map(() => next());
    const inputs = [new Uint32Array(a.buffer), new Uint32Array(b.buffer), c, 128] as const;
    const [, , , d] = await launch(device, kernels.product, inputs);
    const expected = c.map((start, index) => {
      let sum = start;
      for (let k = 0; k < 16; k++) {
        sum = Math.fround(sum + fromHalf(a[(index >> 3) * 16 + k]!) * fromHalf(b[k * 8 + (index & 7)]!));
      }
      return sum;
    });
    expect([...new Float32Array(d!)]).toEqual([...expected]);
  });

  test('ldmatrix loads rows', async () => {
    const rows = new Uint16Array(256).map((_, i) => i * 7 + 1);
    const [, out] = await launch(device, kernels.matrices, [new Uint32Array(rows.buffer), 128]);
    const element = (matrix: number, row: number, column: number): number => rows[matrix * 64 + row * 8 + column]!;
    const words = new Uint32Array(out!);
    for (let lane = 0; lane < 32; lane++) {
      const [g, t] = [lane >> 2, lane & 3];
      const expected = [0, 1, 2, 3].map((m) => element(m, g, 2 * t) + element(m, g, 2 * t + 1) * 65536);
      expect([...words.slice(lane * 4, lane * 4 + 4)]).toEqual(expected);
    }
  });

  test('ldmatrix loads columns', async () => {
    const rows = new Uint16Array(256).map((_, i) => i * 7 + 1);
    const [, out] = await launch(device, kernels.transposedMatrices, [new Uint32Array(rows.buffer), 128]);
    const element = (matrix: number, row: number, column: number): number => rows[matrix * 64 + row * 8 + column]!;
    const words = new Uint32Array(out!);
    for (let lane = 0; lane < 32; lane++) {
      const [g, t] = [lane >> 2, lane & 3];
      const expected = [0, 1, 2, 3].map((m) => element(m, 2 * t, g) + element(m, 2 * t + 1, g) * 65536);
      expect([...words.slice(lane * 4, lane * 4 + 4)]).toEqual(expected);
    }
  });

  test('cp.async has arrived after the wait for its group', async () => {
    const a = Float32Array.from({ length: 224 }, (_, i) => i + 1);
    const [, b] = await launch(device, kernels.copyWaits, [a, 224]);
    expect([...new Float32Array(b!)]).toEqual([...a].reverse());
  });

  test('halves convert as in float16', async () => {
    const next = noise(5);
    const words = new Uint32Array(65536).map(() => next() * 2 ** 32);
    const random = new Float32Array(words.buffer);
    // The upper half around what halves hold, with every tie: halfway between two neighbours.
    for (let i = 0; i < 32768; i++) {
      const bits = Math.floor(Math.abs(next()) * 0x7bff);
      const [low, high] = [fromHalf(bits), fromHalf(bits + 1)];
      random[i + 32768] = i % 2 === 0 ? (low + high) / 2 : low + (high - low) * Math.abs(next());
    }
    random.set([
      65504,
      65519.99,
      65520,
      -65520,
      65535,
      1e30,
      -1e30,
      Infinity,
      -Infinity,
      NaN,
      0,
      -0,
      2 ** -25,
      5.97e-8,
    ]);
    const [all, back, , rounded, saturated, packed] = await launch(
      device,
      kernels.halves,
      [65536, 65536, random, 65536, 65536, 65536],
      [256, 1, 1],
    );
    const floats = new Float32Array(all!);
    const [backs, halves, clamped, pairs] = [back, rounded, saturated, packed].map((words) => new Uint32Array(words!));
    const wrong: string[] = [];
    for (let i = 0; i < 65536; i++) {
      if (!Object.is(floats[i], fromHalf(i))) wrong.push(`half ${i}: ${floats[i]}`);
      if (isNaNHalf(i) ? backs![i] !== 0x7fff : backs![i] !== i) wrong.push(`back ${i}: ${backs![i]}`);
      const value = random[i]!;
      const half = Number.isNaN(value) ? 0x7fff : toHalf(value);
      const limited = Number.isNaN(value) ? 0x7fff : toHalf(Math.max(-65504, Math.min(65504, value)));
      if (halves![i] !== half) wrong.push(`round ${value}: ${halves![i]}`);
      if (clamped![i] !== limited) wrong.push(`saturate ${value}: ${clamped![i]}`);
      if (pairs![i] !== half * 65537) wrong.push(`pack ${value}: ${pairs![i]}`);
    }
    expect(wrong.slice(0, 5)).toEqual([]);
  });

  test('every signed byte is its integer in f16', async () => {
    const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
    const [, halves] = await launch(device, kernels.signedBytes, [new Uint32Array(bytes.buffer), 128], [1, 1, 1]);
    const numbers = [...new Uint16Array(halves!)].map(fromHalf);
    expect(numbers).toEqual([...new Int8Array(bytes.buffer)]);
  });

  test('atomics count, and order nothing wrongly', async () => {
    const inputs = [new Uint32Array([0, 0, 1000, 0, 0]), new Int32Array([-100, 100, 0]), new Float32Array(1)] as const;
    const [counts, extremes, sum] = await launch(device, kernels.atomics, inputs, [4, 1, 1]);
    expect([...new Uint32Array(counts!)]).toEqual([128, 127, 69, 1, 77]);
    expect([...new Int32Array(extremes!)]).toEqual([-19, -50, -128]);
    expect([...new Float32Array(sum!)]).toEqual([64]);
  });

  test('functions of CUDA give its values', async () => {
    const [, out] = await launch(device, kernels.names, [new Float32Array([1, 2, 3, 4, 5, 0, 0, 0]), 13]);
    const expected = [15, 10, 3, 1, 2.25, 5.5, 41, 5, 39, 49, 14, 6, 68];
    expect([...new Float32Array(out!)]).toEqual(expected);
  });

  test('the last block may merge what the others published', async () => {
    const a = Float32Array.from({ length: 256 }, (_, i) => i);
    const [, , , sum] = await launch(device, kernels.mergeLast, [a, 256, new Uint32Array(1), 32], [8, 1, 1]);
    expect([...new Float32Array(sum!)]).toEqual(Array.from({ length: 32 }, (_, i) => 16 * i + 1792));
  });
});

describe('without checks', () => {
  test('memory that nobody wrote reads as NaN, and a copy not waited for too', async () => {
    const device = await EmulatorDevice.open({ checks: 'none' });
    const a = Float32Array.from({ length: 224 }, (_, i) => i + 1);
    const [, forgotten] = await launch(device, kernels.copyForgets, [a, 224]);
    expect([...new Float32Array(forgotten!)]).toEqual(Array(224).fill(NaN));
    // The younger of two groups is not there: its 96 words are the last of the tile, reversed the first.
    const [, one] = await launch(device, kernels.copyWaitsOne, [a, 224]);
    expect([...new Float32Array(one!)]).toEqual([...Array(96).fill(NaN), ...[...a.slice(0, 128)].reverse()]);
    const fresh = device.allocate('fresh', 8);
    expect([...(await device.read(fresh))]).toEqual(Array(8).fill(255));
    await device.close();
  });

  test('an order gives the same bits every time, and orders tell races apart', async () => {
    const text = kernels.kernel('racy', ['u32 out'], 'out[0] = threadIdx.x;\nout[1 + blockIdx.x] = out[0];', {
      threads: 64,
    });
    const results: number[][] = [];
    for (const options of [
      { order: 'ascending' },
      { order: 'descending' },
      { order: 'shuffled', seed: 1 },
      { order: 'shuffled', seed: 1 },
      { order: 'shuffled', seed: 2 },
    ] as const) {
      const device = await EmulatorDevice.open({ checks: 'none', ...options });
      const [out] = await launch(device, text, [5], [4, 1, 1]);
      results.push([...new Uint32Array(out!)]);
      await device.close();
    }
    const [ascending, descending, first, again, other] = results;
    expect(ascending).toEqual([63, 63, 63, 63, 63]);
    expect(descending).toEqual([0, 0, 0, 0, 0]);
    expect(first).toEqual(again);
    expect(first).not.toEqual(other);
  });
});
