import { decodeStream } from './lloydMax.js';
import type { Rotation } from './rope.js';
import { type Cache, emptyTensor, type HeadTensor, vectorAt } from './shapes.js';

/** Tokens kept as they are, keys after RoPE; [kvHead][token][d], every number a float16. */
export type HalfSegment = Cache;

/** Tokens coded one by one, S of them; keys after RoPE. */
export interface StreamSegment {
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

/** One sequence's cache in one layer, whatever codes the middle has: its tokens in the order of the segments. */
export interface SequenceParts<Middle> {
  readonly kvHeads: number;
  /** Channels of a head, d. */
  readonly headDim: number;
  readonly rope: Rotation;
  readonly sinks: HalfSegment;
  readonly middle: Middle;
  readonly stream: StreamSegment;
  readonly window: HalfSegment;
}

/** The d channels of one head of one token of a segment. */
export type TokenDecoder = (head: number, token: number) => Float64Array;

/** The cache that parts stand for, in the order sinks, middle, stream, window; the middle by its own definitions. */
export function decodeSegments(
  parts: SequenceParts<{ readonly tokens: number }>,
  middleKey: TokenDecoder,
  middleValue: TokenDecoder,
): Cache {
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
  place(middle.tokens, middleKey, middleValue);
  place(stream.tokens, streamed(parts, 'keyCodes', 'keyNorms'), streamed(parts, 'valueCodes', 'valueNorms'));
  place(window.keys.tokens, kept(window.keys), kept(window.values));
  return { keys, values };
}

function streamed(
  { stream, kvHeads, headDim: d }: SequenceParts<unknown>,
  codesOf: 'keyCodes' | 'valueCodes',
  normsOf: 'keyNorms' | 'valueNorms',
): TokenDecoder {
  return (head, token) => {
    const vector = token * kvHeads + head;
    const codes = stream[codesOf].slice(vector * d, (vector + 1) * d);
    return decodeStream({ codes, norm: stream[normsOf][vector]! }, stream.levels);
  };
}
