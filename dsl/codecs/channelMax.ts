import type { NormalizeCodec } from '../codec.js';
import { f16, f32, max, min } from '../device.js';

/**
 * Divides every (head, channel) by its largest magnitude over the compressed tokens (Shard, "Values").
 *
 * @example
 * defineScheme({ ...shard, values: [hadamard(), channelMax(), vq({ channels: 4, entries: 256 })] })
 */
export function channelMax(): NormalizeCodec {
  return { kind: 'normalize', name: 'channelMax' };
}

/** The stored f16 scale of a channel: never zero (the floor is 2^-23), never infinite. */
export function channelScale(maxAbs: f32): f32 {
  'device';
  return f32(f16(clampToHalf(maxAbs)));
}

function clampToHalf(maxAbs: f32): f32 {
  'device';
  return min(max(maxAbs, 1.1920928955078125e-7), 65504);
}
