import { defineCodec, defineScheme, f16, f32, lloydMax, min, shard } from '../../dsl/index.js';

/** Codecs whose scale breaks its contract: a finite number, at least 0. */

function neverNumber(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  const zero = maxAbs - maxAbs;
  return zero / zero;
}

function negative(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return -f32(f16(min(maxAbs, 65504)));
}

const schemeOf = (name: string, scale: (sumOfSquares: f32, maxAbs: f32) => f32) => {
  const { levels, device } = lloydMax({ bits: 4 });
  const stream = defineCodec({
    kind: 'scalar',
    name,
    bits: 4,
    levels,
    device: { ...device, scale },
    source: import.meta.url,
  });
  return defineScheme({ ...shard, name, stream });
};

export const withoutNumbers = schemeOf('without-numbers', neverNumber);
export const belowZero = schemeOf('below-zero', negative);
