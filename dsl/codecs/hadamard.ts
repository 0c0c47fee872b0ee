import type { TransformCodec } from '../codec.js';
import { type f32, vec2f } from '../device.js';

/**
 * The orthonormal Hadamard transform over the head dimension (Sylvester order), which spreads outliers over all
 * channels. A head dimension that is no power of two is split into blocks of its largest power-of-two divisor.
 *
 * @example
 * defineScheme({ ...shard, values: [hadamard(), channelMax(), vq({ channels: 4, entries: 256 })] })
 */
export function hadamard(): TransformCodec {
  return { kind: 'transform', name: 'hadamard' };
}

/** One butterfly of the unnormalised transform; the schedule scales once at the end. */
export function butterfly(a: f32, b: f32): vec2f {
  'device';
  return vec2f(a + b, a - b);
}
