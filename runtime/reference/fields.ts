/** Bit fields packed without gaps: bit i of a buffer is bit i mod 8, counted from the lowest, of byte floor(i/8). */
export interface Field {
  /** Bits before the field. */
  readonly offset: number;
  /** Bits of the field, 1 to 32. */
  readonly width: number;
}

/**
 * @returns the field as an unsigned number
 * @example
 * readField(Uint8Array.of(0b1010_0000, 0b0000_0001), { offset: 5, width: 4 }); // 0b1101
 */
export function readField(bytes: Uint8Array, { offset, width }: Field): number {
  let value = 0;
  for (let bit = 0; bit < width; bit++) {
    const at = offset + bit;
    if (at < 0 || at >= bytes.length * 8) throw new RangeError(`bit ${at} is outside of ${bytes.length} bytes`);
    if ((bytes[at >> 3]! >> (at & 7)) & 1) value += 2 ** bit;
  }
  return value;
}

/** @returns the field as a two's complement number */
export function readSignedField(bytes: Uint8Array, field: Field): number {
  const value = readField(bytes, field);
  return value < 2 ** (field.width - 1) ? value : value - 2 ** field.width;
}

/** Writes the lowest `width` bits of an integer, negative ones as two's complement; other bits stay. */
export function writeField(bytes: Uint8Array, { offset, width }: Field, value: number): void {
  for (let bit = 0; bit < width; bit++) {
    const at = offset + bit;
    if (at < 0 || at >= bytes.length * 8) throw new RangeError(`bit ${at} is outside of ${bytes.length} bytes`);
    const mask = 1 << (at & 7);
    const set = Math.floor(value / 2 ** bit) % 2 !== 0;
    bytes[at >> 3] = set ? bytes[at >> 3]! | mask : bytes[at >> 3]! & ~mask;
  }
}
