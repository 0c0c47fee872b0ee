import { blockSize } from '../reference/hadamard.js';
import { rotate } from '../reference/rope.js';
import { scalarDecoder } from '../reference/scalar.js';
import { decodeSegments } from '../reference/segments.js';
import { type CodedSequence, isScalarParts, isTiltParts } from '../reference/sequence.js';
import type { Cache } from '../reference/shapes.js';
import type { ShardMiddle, ShardParts } from '../reference/shard.js';
import { placeInTile, rangeBlockOf, type TiltParts } from '../reference/tilt.js';
import { partsOfHead } from './oneHead.js';

/**
 * What one KV head of a sequence stands for, in float64, as the reference has it to rounding: factors that all tokens
 * share are multiplied once, and the Hadamard transform has no matrix, or 128K tokens would take longer to check than to
 * measure.
 */
export function decodeHead(parts: CodedSequence, head: number): Cache {
  if (isTiltParts(parts)) return decodeTiltHead(partsOfHead(parts, head));
  if (!isScalarParts(parts)) return decodeShardHead(partsOfHead(parts, head));
  const own = partsOfHead(parts, head);
  const { keys, values } = own.middle;
  return decodeSegments(own, scalarDecoder(own, keys, transformed), scalarDecoder(own, values, transformed));
}

/** A basis is over the weights here, and components without bits are left out. */
function decodeTiltHead(own: TiltParts): Cache {
  const { middle, headDim: d, rope } = own;
  const { firstPosition, tile, rangeBlock, group, widths, keyCodes, steps, basisCodes, mean, weights } = middle;
  const { scaleChannels, codes, scales, offsets, levels, gains } = middle.tiltValues;
  const stored = Array.from({ length: d }, (_, r) => r).filter((r) => widths[Math.floor(r / group)]! > 0);
  const basis = Float64Array.from(basisCodes, (code, at) => code / 128 / weights[at % d]!);
  const key = (_: number, token: number) => {
    const position = firstPosition + token;
    const block = rangeBlockOf(position, rangeBlock) * d;
    const difference = new Float64Array(d);
    for (const r of stored) {
      const component = steps[block + r]! * (keyCodes[token * d + r]! + 0.5);
      for (let i = 0; i < d; i++) difference[i]! += component * basis[r * d + i]!;
    }
    const centred = rotate(difference, -placeInTile(position, tile), rope);
    return rotate(
      centred.map((x, i) => x + mean[i]!),
      position,
      rope,
    );
  };
  const value = (_: number, token: number) => {
    const coded = Float64Array.from({ length: d }, (_, i) => {
      const at = token * (d / scaleChannels) + Math.floor(i / scaleChannels);
      return (gains?.[i] ?? 1) * ((offsets?.[at] ?? 0) + scales[at]! * levels[codes[token * d + i]!]!);
    });
    return transformed(coded);
  };
  return decodeSegments(own, key, value);
}

function decodeShardHead(own: ShardParts): Cache {
  const { middle, headDim: d, rope } = own;
  const keyOf = middleKeys(middle, d);
  return decodeSegments(
    own,
    (_, token) => rotate(keyOf(token), middle.firstPosition + token, rope),
    (_, token) => middleValue(middle, d, token),
  );
}

/** Keys before RoPE: `mu + (1/w) * sum over r of s_r * (code + offset) * (b_r * B8[:, r])`. */
function middleKeys(middle: ShardMiddle, d: number): (token: number) => Float64Array {
  const { rank, mean, weights, basisCodes, basisScales, coefficientScales, coefficientCodes, codeOffset } = middle;
  const basis = Float64Array.from(
    basisCodes,
    (code, at) => (code * basisScales[at % rank]!) / weights[Math.floor(at / rank)]!,
  );
  const scales = coefficientScales.map((scale, r) => (middle.groupBits?.[Math.floor(r / 16)] === 0 ? 0 : scale));
  const coefficients = new Float64Array(rank);
  return (token) => {
    for (let r = 0; r < rank; r++) coefficients[r] = scales[r]! * (coefficientCodes[token * rank + r]! + codeOffset);
    const key = Float64Array.from(mean);
    for (let i = 0; i < d; i++) {
      // Two sums, as each addition waits for the one before it; ranks are multiples of 16.
      let [even, odd] = [0, 0];
      for (let r = 0; r < rank; r += 2) {
        even += coefficients[r]! * basis[i * rank + r]!;
        odd += coefficients[r + 1]! * basis[i * rank + r + 1]!;
      }
      key[i]! += even + odd;
    }
    return key;
  };
}

/** `H (channelMax * centroid[code])`. */
function middleValue(
  { channels, valueCodes, codebook, channelMax }: ShardMiddle,
  d: number,
  token: number,
): Float64Array {
  const turned = new Float64Array(d);
  for (let i = 0; i < d; i++) {
    const code = valueCodes[(token * d + i - (i % channels)) / channels]!;
    turned[i] = channelMax[i]! * codebook[code * channels + (i % channels)]!;
  }
  return transformed(turned);
}

/** The block-diagonal Hadamard transform, in as many additions as a sum over a binary tree has. */
function transformed(x: Float64Array): Float64Array {
  const n = blockSize(x.length);
  for (let half = 1; half < n; half *= 2) {
    for (let i = 0; i < x.length; i++) {
      if ((i & half) !== 0) continue;
      const [a, b] = [x[i]!, x[i + half]!];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  const scale = 1 / Math.sqrt(n);
  return x.map((value) => value * scale);
}
