import { clamp, defineCodec, defineScheme, f16, f32, floor, type Lookup, min, type Static, shard, u32 } from 'kvforge';

/** The largest magnitude is the scale: int8 as everyone does it, in place of the Gaussian levels. */
function largestMagnitude(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return f32(f16(min(maxAbs, 65504)));
}

function uniformCode(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  const half = f32(1 << (bits - 1));
  return u32(clamp(floor(x * half + half), 0, half * 2 - 1));
}

function levelOf(code: u32, levels: Lookup<f32>): f32 {
  'device';
  return levels(code);
}

const absmax8 = defineCodec({
  kind: 'scalar',
  name: 'absmax8',
  bits: 8,
  levels: () => Array.from({ length: 256 }, (_, code) => (code + 0.5) / 128 - 1),
  device: { scale: largestMagnitude, code: uniformCode, value: levelOf },
  source: import.meta.url,
});

export default defineScheme({ ...shard, name: 'shard-absmax', stream: absmax8 });
