import {
  clamp,
  defineCodec,
  defineScheme,
  f16,
  f32,
  hadamard,
  type Lookup,
  lloydMax,
  min,
  perToken,
  round,
  type Static,
  u32,
} from 'kvforge';

/** From what the channels of a vector have in common to the scale that is stored: their largest magnitude. */
function newScale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return f32(f16(min(maxAbs, 65504)));
}

/** From a channel over the scale, -1 to 1, to its code. */
function newCode(x: f32, _levels: Lookup<f32>, bits: Static<u32>): u32 {
  'device';
  const largest = f32((1 << bits) - 1);
  return u32(clamp(round((x + 1) * 0.5 * largest), 0, largest));
}

/** From a code back to the channel over the scale. */
function newValue(code: u32, levels: Lookup<f32>): f32 {
  'device';
  return levels(code);
}

const newCodec = defineCodec({
  kind: 'scalar',
  name: 'newCodec',
  bits: 4,
  levels: () => Array.from({ length: 16 }, (_, code) => code / 7.5 - 1),
  device: { scale: newScale, code: newCode, value: newValue },
  source: import.meta.url,
});

export default defineScheme({
  name: 'new-scheme',
  keys: [hadamard(), perToken(newCodec)],
  values: [hadamard(), perToken(newCodec)],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 4 }),
});
