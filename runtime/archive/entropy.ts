import { constants, deflateRawSync, inflateRawSync } from 'node:zlib';
import { KvforgeError } from '../../dsl/errors.js';

/** DEFLATE turns a byte into at most so many: what states more is refused before it is given memory. */
const mostExpansion = 1032;

/** Symbols that share a byte: Huffman's codes take a bit at least, which is much for symbols of one or two. */
export const symbolsPerByte = (bits: number) => (bits === 2 ? 4 : bits <= 4 ? 2 : 1);

/** Entropy codes bytes; the stream has no header, as lengths and checksums are the file's. */
export function deflated(bytes: Uint8Array): Uint8Array {
  if (bytes.length === 0) return bytes;
  // Noise repeats nothing: strings that seem to match take longer, and their lengths would share the symbols' table.
  const plain = deflateRawSync(bytes, { level: 9, memLevel: 9, strategy: constants.Z_HUFFMAN_ONLY });
  const matched = deflateRawSync(bytes, { level: 9, memLevel: 9 });
  return matched.length < plain.length ? matched : plain;
}

/**
 * Takes back `deflated`.
 *
 * @param length that it must come to; no more is ever given memory
 * @throws KvforgeError `invalid-input` for a stream that ends early, is damaged, or of another length
 */
export function inflated(bytes: Uint8Array, length: number, at: string): Uint8Array {
  if (length === 0 && bytes.length === 0) return new Uint8Array(0);
  const refuse = (received: string, cause?: unknown): never => {
    const [expected, hint] = [`a stream of ${length} bytes`, 'Pack the cache again.'];
    throw new KvforgeError('invalid-input', { at: `archive, ${at}`, expected, received, hint }, { cause });
  };
  if (length > bytes.length * mostExpansion) refuse(`${bytes.length} bytes, too few for it`);
  let whole: Uint8Array;
  try {
    whole = inflateRawSync(bytes, { maxOutputLength: Math.max(length, 1) });
  } catch (cause) {
    return refuse(cause instanceof RangeError ? 'a longer one' : (cause as Error).message, cause);
  }
  if (whole.length !== length) refuse(`one of ${whole.length}`);
  return whole;
}

/** Bytes of codes before they are entropy coded. */
export function joinSymbols(symbols: Uint8Array, bits: number): Uint8Array {
  const each = symbolsPerByte(bits);
  if (each === 1) return symbols;
  const bytes = new Uint8Array(Math.ceil(symbols.length / each));
  const shift = 8 / each;
  for (let i = 0; i < symbols.length; i++) {
    bytes[Math.floor(i / each)]! |= symbols[i]! << ((i % each) * shift);
  }
  return bytes;
}

/** Takes back `joinSymbols`. */
export function splitSymbols(bytes: Uint8Array, bits: number, count: number): Uint8Array {
  const each = symbolsPerByte(bits);
  if (each === 1) return bytes;
  const shift = 8 / each;
  const mask = 2 ** shift - 1;
  return new Uint8Array(count).map((_, i) => (bytes[Math.floor(i / each)]! >> ((i % each) * shift)) & mask);
}

/** The low bytes of f16 bits, then the high ones: signs and exponents repeat, mantissas do not. */
export function bytePlanes(bits: Uint16Array): Uint8Array {
  const planes = new Uint8Array(bits.length * 2);
  for (let i = 0; i < bits.length; i++) {
    planes[i] = bits[i]! & 0xff;
    planes[bits.length + i] = bits[i]! >> 8;
  }
  return planes;
}

/** Takes back `bytePlanes`. */
export function fromBytePlanes(planes: Uint8Array): Uint16Array {
  const count = planes.length / 2;
  return new Uint16Array(count).map((_, i) => planes[i]! | (planes[count + i]! << 8));
}
