import { getFloat16, setFloat16 } from '@petamoriken/float16';
import fc from 'fast-check';
import { normalFrom, seededRandom } from '../reference/index.js';

/** Shapes of data that kernels get wrong: flat, tiny, huge, repeated, and dominated by one channel. */
export const kinds = [
  'normal',
  'zeros',
  'zero rows',
  'constant channels',
  'loud channel',
  'small',
  'denormals',
  'largest halves',
  'repeated rows',
] as const;
export type Kind = (typeof kinds)[number];

export interface Draw {
  readonly tokens: number;
  readonly kind: Kind;
  readonly seed: number;
}

/** Lengths around the tile's edges, or anything up to `most`. */
export function lengths(tile: number, most: number): fc.Arbitrary<number> {
  return fc.oneof(fc.constantFrom(0, 1, tile - 1, tile, tile + 1), fc.integer({ min: 0, max: most }));
}

export function draws(tokens: fc.Arbitrary<number>): fc.Arbitrary<Draw> {
  return fc.record({ tokens, kind: fc.constantFrom(...kinds), seed: fc.nat({ max: 0xffff }) });
}

/** Numbers of the drawn kind, [rows][width]; none exceeds f16. */
export function numbers({ kind, seed }: Omit<Draw, 'tokens'>, rows: number, width: number): Float64Array {
  const random = seededRandom(seed);
  const normal = () => normalFrom(random);
  const offsets = Float64Array.from({ length: width }, normal);
  const loud = Math.floor(random() * width);
  const few = Float64Array.from({ length: 3 * width }, normal);
  const data = new Float64Array(rows * width);
  for (let row = 0; row < rows; row++) {
    const blank = kind === 'zeros' || (kind === 'zero rows' && random() < 0.5);
    const same = Math.floor(random() * 3);
    for (let i = 0; i < width && !blank; i++) {
      let x = normal() + offsets[i]!;
      if (kind === 'constant channels' && i % 2 === 0) x = offsets[i]!;
      if (kind === 'loud channel' && i === loud) x *= 1000;
      if (kind === 'small') x *= 1e-3;
      if (kind === 'denormals') x *= 2 ** -20;
      if (kind === 'largest halves') x = (random() < 0.5 ? -1 : 1) * (random() < 0.5 ? 65504 : 60000 * random());
      if (kind === 'repeated rows') x = few[same * width + i]!;
      data[row * width + i] = x;
    }
  }
  return data;
}

const scratch = new DataView(new ArrayBuffer(2));

export function halfBits(values: ArrayLike<number>): Uint16Array {
  return Uint16Array.from(values, (value) => {
    setFloat16(scratch, 0, value);
    return scratch.getUint16(0);
  });
}

export function halfValues(bits: ArrayLike<number>): Float64Array {
  return Float64Array.from(bits, (word) => {
    scratch.setUint16(0, word);
    return getFloat16(scratch, 0);
  });
}

export function largestOf(values: ArrayLike<number>): number {
  let largest = 0;
  for (let i = 0; i < values.length; i++) largest = Math.max(largest, Math.abs(values[i]!));
  return largest;
}

/** The place and the size of the worst difference; NaN counts as infinite. */
export function worstDifference(actual: ArrayLike<number>, expected: ArrayLike<number>): { at: number; by: number } {
  let worst = { at: -1, by: 0 };
  for (let at = 0; at < expected.length; at++) {
    const by = Math.abs(actual[at]! - expected[at]!);
    if (!(by <= worst.by)) worst = { at, by: Number.isNaN(by) ? Infinity : by };
  }
  return worst;
}

export type Floats = Float32Array | Float64Array;

/** The worst error of every `length` numbers over their largest magnitude, and its place; zeros must be zeros. */
export function worstError(output: Floats, expected: Floats, length: number): { at: number; by: number } {
  let worst = { at: -1, by: 0 };
  for (let start = 0; start < expected.length; start += length) {
    const judge = expected.subarray(start, start + length);
    const { at, by } = worstDifference(output.subarray(start, start + length), judge);
    const largest = largestOf(judge);
    const error = largest > 0 ? by / largest : by === 0 ? 0 : Number.POSITIVE_INFINITY;
    if (error > worst.by) worst = { at: start + at, by: error };
  }
  return worst;
}

/** A byte that kernels must leave where they have nothing to write. */
export const untouched = 0xa5;

/** Places outside of `ranges` (in bytes) that no longer hold the untouched byte. */
export function strayWrites(bytes: Uint8Array, ranges: readonly { offset: number; bytes: number }[]): number[] {
  const places: number[] = [];
  for (let at = 0; at < bytes.length; at++) {
    const allowed = ranges.some(({ offset, bytes: size }) => at >= offset && at < offset + size);
    if (!allowed && bytes[at] !== untouched) places.push(at);
  }
  return places;
}
