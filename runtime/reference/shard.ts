import { hadamard } from './hadamard.js';
import { rotate } from './rope.js';
import { decodeSegments, type SequenceParts, type StreamSegment, type TokenDecoder } from './segments.js';
import type { Cache } from './shapes.js';

/** The compressed middle of one sequence's cache in one layer, M tokens. W = kvHeads*d, R = rank. */
export interface ShardMiddle {
  readonly tokens: number;
  /** Position of the first of them. */
  readonly firstPosition: number;
  readonly rank: number;
  /** [M][R], integers. */
  readonly coefficientCodes: Int32Array;
  /** What is added to every code: 0 for symmetric codes, 1/2 for mid-rise codes. */
  readonly codeOffset: 0 | 0.5;
  /** Bits of each group of 16 components, where the prompt decided them; a group without bits adds nothing. */
  readonly groupBits?: readonly number[];
  /** [R], float16. */
  readonly coefficientScales: Float64Array;
  /** [W][R] */
  readonly basisCodes: Int8Array;
  /** [R], float16. */
  readonly basisScales: Float64Array;
  /** [W], mean of the keys before RoPE, float16. */
  readonly mean: Float64Array;
  /** [W], float16 above 0: what the keys were multiplied with before they were coded; 1 where nothing is weighted. */
  readonly weights: Float64Array;
  /** Channels one value code stands for. */
  readonly channels: number;
  /** [M][kvHeads*d/channels] */
  readonly valueCodes: Uint16Array;
  /** [entries][channels], float16. */
  readonly codebook: Float64Array;
  /** [kvHeads][d], float16, of values after the Hadamard transform. */
  readonly channelMax: Float64Array;
}

export type ShardStream = StreamSegment;

export type ShardParts = SequenceParts<ShardMiddle>;

/**
 * The cache a Shard-compressed sequence stands for, straight from the definitions, in the order sinks, middle, stream,
 * window.
 *
 * @example
 * const decoded = decodeShard(encodeShard(exact, model, options));
 * attentionError({ queries, exact, decoded }) < 0.02; // true
 */
export function decodeShard(parts: ShardParts): Cache {
  return decodeSegments(parts, middleKey(parts), middleValue(parts));
}

/** `k_hat = RoPE(mu + (1/w) * sum over r of s_r * (code + offset) * (b_r * B8[:, r]))`. */
function middleKey({ middle, headDim: d, rope }: ShardParts): TokenDecoder {
  const { rank, firstPosition, coefficientCodes, codeOffset, coefficientScales, basisCodes, basisScales } = middle;
  return (head, token) => {
    const key = middle.mean.slice(head * d, (head + 1) * d);
    for (let i = 0; i < d; i++) {
      for (let r = 0; r < rank; r++) {
        if (middle.groupBits?.[Math.floor(r / 16)] === 0) continue;
        const coefficient = coefficientScales[r]! * (coefficientCodes[token * rank + r]! + codeOffset);
        const weighted = coefficient * basisScales[r]! * basisCodes[(head * d + i) * rank + r]!;
        key[i]! += weighted / middle.weights[head * d + i]!;
      }
    }
    return rotate(key, firstPosition + token, rope);
  };
}

/** `v_hat = H (channelMax * centroid[code])`, H its own inverse. */
function middleValue({ middle, kvHeads, headDim: d }: ShardParts): TokenDecoder {
  const { channels, valueCodes, codebook, channelMax } = middle;
  const groups = d / channels;
  return (head, token) => {
    const turned = Float64Array.from({ length: d }, (_, i) => {
      const code = valueCodes[(token * kvHeads + head) * groups + Math.floor(i / channels)]!;
      return channelMax[head * d + i]! * codebook[code * channels + (i % channels)]!;
    });
    return hadamard(turned);
  };
}
