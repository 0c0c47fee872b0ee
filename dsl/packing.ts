import { type Lookup, type Static, u32 } from './device.js';

/**
 * Builds one 32-bit word of a little-endian bit-field row: field `i` occupies bits `[i*bits, (i+1)*bits)` of the row.
 * Widths that do not divide 32 straddle words, so a word may hold the tail of one field and the head of another.
 *
 * @param word index of the word in the row
 * @param count fields in the row; bits past the last field are zero
 * @param fields the unsigned field values, each below `2^bits`
 */
export function packWord(word: u32, count: u32, fields: Lookup<u32>, bits: Static<u32>): u32 {
  'device';
  const firstBit = u32(word * 32);
  const first = u32(firstBit / bits);
  let packed: u32 = 0;
  for (let i = 0; i < u32((30 + bits) / bits) + 1; i++) {
    const field = u32(first + i);
    const position = u32(field * bits);
    if (field < count && position < u32(firstBit + 32)) {
      const value = fields(field);
      if (position >= firstBit) {
        packed = u32(packed | u32(value << u32(position - firstBit)));
      } else {
        packed = u32(packed | u32(value >>> u32(firstBit - position)));
      }
    }
  }
  return packed;
}

/** Reads field `index` of a row that `packWord` wrote; touches the second word only when the field straddles. */
export function unpackField(index: u32, words: Lookup<u32>, bits: Static<u32>): u32 {
  'device';
  const position = u32(index * bits);
  const word = u32(position / 32);
  const shift = u32(position % 32);
  let value = u32(words(word) >>> shift);
  if (32 % bits !== 0) {
    if (u32(shift + bits) > 32) {
      value = u32(value | u32(words(u32(word + 1)) << u32(32 - shift)));
    }
  }
  return u32(value & u32(0xffffffff >>> u32(32 - bits)));
}

/**
 * Reads `bits` bits (1 to 32, known when the kernel runs) from bit `position` of a row on; touches the second word only
 * when the field straddles.
 */
export function unpackBits(position: u32, bits: u32, words: Lookup<u32>): u32 {
  'device';
  const word = u32(position / 32);
  const shift = u32(position % 32);
  let value = u32(words(word) >>> shift);
  if (u32(shift + bits) > 32) {
    value = u32(value | u32(words(u32(word + 1)) << u32(32 - shift)));
  }
  return u32(value & u32(0xffffffff >>> u32(32 - bits)));
}

/**
 * The part of a row's 32-bit word that belongs to one group of fields: `count` of them, `bits` bits each (1 to 8, known
 * when the kernel runs), from bit `first` of the row on. What `unpackBits` reads.
 */
export function packBits(word: u32, first: u32, bits: u32, fields: Lookup<u32>, count: Static<u32>): u32 {
  'device';
  const begin = u32(word * 32);
  let packed: u32 = 0;
  for (let i = 0; i < count; i++) {
    const position = u32(first + u32(i * bits));
    if (position < u32(begin + 32) && u32(position + bits) > begin) {
      const value = fields(u32(i));
      if (position >= begin) {
        packed = u32(packed | u32(value << u32(position - begin)));
      } else {
        packed = u32(packed | u32(value >>> u32(begin - position)));
      }
    }
  }
  return packed;
}
