import type { PartName } from '../../codegen/plan/layout.js';
import { writeField } from '../reference/index.js';
import { halfBits } from './draws.js';

/** The rows in use of a part, as bytes. */
export type PackedPart = readonly [PartName, Uint8Array];

export function halfBytes(values: ArrayLike<number>): Uint8Array {
  return new Uint8Array(halfBits(values).buffer);
}

/** Rows of `count` float16 numbers in so many words each; what is left of a row is zero. */
export function halfRows(
  values: Float64Array,
  { count, words }: { readonly count: number; readonly words: number },
): Uint8Array {
  const rows = new Float64Array((values.length / count) * words * 2);
  values.forEach((value, i) => {
    rows[Math.floor(i / count) * words * 2 + (i % count)] = value;
  });
  return halfBytes(rows);
}

/** Rows of `count` fields in so many words each; what is left of a row is zero. */
export function fieldRows(
  codes: Uint8Array | Uint16Array,
  { count, words, bits }: { readonly count: number; readonly words: number; readonly bits: number },
): Uint8Array {
  const bytes = new Uint8Array((codes.length / count) * words * 4);
  for (const [i, code] of codes.entries()) {
    const offset = Math.floor(i / count) * words * 32 + (i % count) * bits;
    writeField(bytes, { offset, width: bits }, code);
  }
  return bytes;
}
