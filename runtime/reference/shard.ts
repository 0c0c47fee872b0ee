import { hadamard } from './hadamard.js';
import { decodeStream } from './lloydMax.js';
import { type Rotation, rotate } from './rope.js';
import { type Cache, emptyTensor, type HeadTensor, vectorAt } from './shapes.js';

/** Tokens kept as they are, keys after RoPE; [kvHead][token][d], every number a float16. */
export type HalfSegment = Cache;

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

/** Tokens coded one by one, S of them; keys after RoPE. */
export interface ShardStream {
  readonly tokens: number;
  /** [S][kvHead][d] */
  readonly keyCodes: Uint16Array;
  readonly valueCodes: Uint16Array;
  /** [S][kvHead], float16. */
  readonly keyNorms: Float64Array;
  readonly valueNorms: Float64Array;
  /** Ascending, for unit vectors of d channels. */
  readonly levels: Float64Array;
}

export interface ShardParts {
  readonly kvHeads: number;
  /** Channels of a head, d. */
  readonly headDim: number;
  readonly rope: Rotation;
  readonly sinks: HalfSegment;
  readonly middle: ShardMiddle;
  readonly stream: ShardStream;
  readonly window: HalfSegment;
}

/**
 * The cache a Shard-compressed sequence stands for, straight from the definitions, in the order sinks, middle, stream,
 * window.
 *
 * @example
 * const decoded = decodeShard(encodeShard(exact, model, options));
 * attentionError({ queries, exact, decoded }) < 0.02; // true
 */
export function decodeShard(parts: ShardParts): Cache {
  const { sinks, middle, stream, window, kvHeads, headDim } = parts;
  const tokens = sinks.keys.tokens + middle.tokens + stream.tokens + window.keys.tokens;
  const keys = emptyTensor(kvHeads, tokens, headDim);
  const values = emptyTensor(kvHeads, tokens, headDim);
  let next = 0;
  const place = (count: number, decodeKey: TokenDecoder, decodeValue: TokenDecoder) => {
    for (let token = 0; token < count; token++, next++) {
      for (let head = 0; head < kvHeads; head++) {
        vectorAt(keys, head, next).set(decodeKey(head, token));
        vectorAt(values, head, next).set(decodeValue(head, token));
      }
    }
  };
  const kept =
    (tensor: HeadTensor): TokenDecoder =>
    (head, token) =>
      vectorAt(tensor, head, token);
  place(sinks.keys.tokens, kept(sinks.keys), kept(sinks.values));
  place(middle.tokens, middleKey(parts), middleValue(parts));
  place(stream.tokens, streamed(parts, 'keyCodes', 'keyNorms'), streamed(parts, 'valueCodes', 'valueNorms'));
  place(window.keys.tokens, kept(window.keys), kept(window.values));
  return { keys, values };
}

/** The d channels of one head of one token of a segment. */
type TokenDecoder = (head: number, token: number) => Float64Array;

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

function streamed(
  { stream, kvHeads, headDim: d }: ShardParts,
  codesOf: 'keyCodes' | 'valueCodes',
  normsOf: 'keyNorms' | 'valueNorms',
): TokenDecoder {
  return (head, token) => {
    const vector = token * kvHeads + head;
    const codes = stream[codesOf].slice(vector * d, (vector + 1) * d);
    return decodeStream({ codes, norm: stream[normsOf][vector]! }, stream.levels);
  };
}
