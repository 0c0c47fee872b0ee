import { getFloat16 } from '@petamoriken/float16';
import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import { readField } from './fields.js';

/** The parts of one sequence's share of the cache buffer, element by element. */
export class ShareReader {
  readonly #layout: SequenceLayout;
  readonly #share: Uint8Array;

  constructor(layout: SequenceLayout, share: Uint8Array) {
    this.#layout = layout;
    this.#share = share;
  }

  bytes(name: PartName): Uint8Array {
    const placed = this.#layout.parts.find((candidate) => candidate.name === name)!;
    return this.#share.subarray(placed.offset, placed.offset + placed.bytes);
  }

  /** `count` float16 numbers, from number `first` of the part on. */
  halves(name: PartName, count: number, first = 0): Float64Array {
    const bytes = this.bytes(name);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return Float64Array.from({ length: count }, (_, i) => getFloat16(view, (first + i) * 2, true));
  }

  /** The first `count` float16 numbers of each of the first rows. */
  halfRows(name: PartName, rows: number, { count, words }: RowShape): Float64Array {
    const numbers = new Float64Array(rows * count);
    for (let row = 0; row < rows; row++) numbers.set(this.halves(name, count, row * words * 2), row * count);
    return numbers;
  }

  /** The first `count` fields of each of the first rows. */
  fieldRows(name: PartName, rows: number, { count, words, bits }: RowShape & { readonly bits: number }): Uint8Array {
    const bytes = this.bytes(name);
    return Uint8Array.from({ length: rows * count }, (_, i) =>
      readField(bytes, { offset: Math.floor(i / count) * words * 32 + (i % count) * bits, width: bits }),
    );
  }
}

/** Elements of a row, and the words that it takes. */
interface RowShape {
  readonly count: number;
  readonly words: number;
}
