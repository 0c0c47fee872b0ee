import type { QjlCodec } from '../codec.js';
import { hashBits } from '../random.js';

/**
 * Keeps of what the codes of a key leave one bit a channel and a length: the signs of a random projection, from which
 * products with it are estimated without bias (QJL, Zandieh et al. 2024; TurboQuant, Zandieh et al. 2025, section 3.2).
 * The projection is orthogonal: channels times random signs, then the Hadamard transform.
 *
 * @param seed of the signs of channels
 * @example
 * [hadamard(), perToken(lloydMax({ bits: 3 })), qjl()]
 */
export function qjl({ seed = 1 }: { seed?: number } = {}): QjlCodec {
  return { kind: 'qjl', name: 'qjl', seed };
}

/** 1 or -1 for every channel. */
export function projectionSigns(seed: number, channels: number): readonly number[] {
  return Array.from({ length: channels }, (_, channel) => (hashBits(hashBits(seed) ^ channel) >>> 31 === 0 ? 1 : -1));
}
