import { attend } from './attention.js';
import { hadamard } from './hadamard.js';
import { decodeStream } from './lloydMax.js';
import { emptyTensor, type HeadTensor, headRows, vectorAt } from './shapes.js';

/** One part of every token of a middle, latents or rotary parts, with a code for every number. */
export interface LatentCodes {
  /** Coded after the Hadamard transform. */
  readonly turned: boolean;
  /** Channels that share a scale. */
  readonly block: number;
  /** [M][d] */
  readonly codes: Uint8Array;
  /** [M][d / block], float16. */
  readonly scales: Float64Array;
  /** Of the same shape, float16; left out where nothing is taken off. */
  readonly offsets?: Float64Array;
  /** What each code stands for, over its scale. */
  readonly values: Float64Array;
}

/** One part of every token of a stream, coded after the Hadamard transform. */
export interface StreamedPart {
  /** [S][d] */
  readonly codes: Uint8Array;
  /** [S], float16. */
  readonly norms: Float64Array;
  /** What each code stands for, over the norm. */
  readonly levels: Float64Array;
}

/** The compressed tokens of one sequence in one layer with multi-head latent attention. */
export interface LatentParts {
  readonly latentDim: number;
  readonly rotaryDim: number;
  /** Of one head, latentDim + rotaryDim channels a token. */
  readonly sinks: HeadTensor;
  readonly middle: {
    readonly tokens: number;
    readonly latent: LatentCodes;
    /** Codes, or the numbers themselves, [M][rotaryDim]. */
    readonly rotary: LatentCodes | Float64Array;
  };
  readonly stream: {
    readonly tokens: number;
    readonly latent: StreamedPart;
    /** Codes, or the numbers themselves, [S][rotaryDim]. */
    readonly rotary: StreamedPart | Float64Array;
  };
  readonly window: HeadTensor;
}

/**
 * The tokens that the parts stand for, straight from the definitions, in the order sinks, middle, stream, window.
 *
 * @returns [1][tokens][latentDim + rotaryDim]
 * @example
 * const none = { heads: 1, tokens: 0, channels: 2, data: new Float64Array(0) };
 * const empty = new Float64Array(0);
 * const latent = { turned: false, block: 1, codes: Uint8Array.of(1), scales: Float64Array.of(3), values: Float64Array.of(-1, 1) };
 * const stream = { tokens: 0, latent: { codes: new Uint8Array(0), norms: empty, levels: empty }, rotary: empty };
 * const middle = { tokens: 1, latent, rotary: Float64Array.of(5) };
 * decodeLatents({ latentDim: 1, rotaryDim: 1, sinks: none, middle, stream, window: none }).data; // [3, 5]
 */
export function decodeLatents({ latentDim, rotaryDim, sinks, middle, stream, window }: LatentParts): HeadTensor {
  const tokens = sinks.tokens + middle.tokens + stream.tokens + window.tokens;
  const decoded = emptyTensor(1, tokens, latentDim + rotaryDim);
  let next = 0;
  const place = (count: number, decode: (token: number) => ArrayLike<number>) => {
    for (let token = 0; token < count; token++) vectorAt(decoded, 0, next++).set(decode(token));
  };
  place(sinks.tokens, (token) => vectorAt(sinks, 0, token));
  place(middle.tokens, (token) => [
    ...decodeCodes(middle.latent, latentDim, token),
    ...(middle.rotary instanceof Float64Array
      ? middle.rotary.subarray(token * rotaryDim, (token + 1) * rotaryDim)
      : decodeCodes(middle.rotary, rotaryDim, token)),
  ]);
  place(stream.tokens, (token) => [
    ...decodeStreamed(stream.latent, latentDim, token),
    ...(stream.rotary instanceof Float64Array
      ? stream.rotary.subarray(token * rotaryDim, (token + 1) * rotaryDim)
      : decodeStreamed(stream.rotary, rotaryDim, token)),
  ]);
  place(window.tokens, (token) => vectorAt(window, 0, token));
  return decoded;
}

/** `x_hat = offset + scale * value[code]`, then the transform back. */
function decodeCodes(
  { turned, block, codes, scales, offsets, values }: LatentCodes,
  d: number,
  token: number,
): Float64Array {
  const coded = Float64Array.from({ length: d }, (_, i) => {
    const at = token * (d / block) + Math.floor(i / block);
    return (offsets?.[at] ?? 0) + scales[at]! * values[codes[token * d + i]!]!;
  });
  return turned ? hadamard(coded) : coded;
}

function decodeStreamed({ codes, norms, levels }: StreamedPart, d: number, token: number): Float64Array {
  return decodeStream(
    { codes: Uint16Array.from(codes.subarray(token * d, (token + 1) * d)), norm: norms[token]! },
    levels,
  );
}

export interface LatentQuery {
  /** [latentDim + rotaryDim], the projection of keys absorbed, the rotary part after RoPE. */
  readonly query: Float64Array;
  /** [1][tokens][latentDim + rotaryDim] */
  readonly tokens: HeadTensor;
  readonly latentDim: number;
  readonly scale: number;
  /** Tokens of the sequence that come after the query's own. */
  readonly after: number;
}

/**
 * Multi-head latent attention of one query head (DeepSeek-V2, 2024): a token is key with all of its channels, and value
 * with those of the latent.
 *
 * @returns [latentDim], which the head's projection of values still has to turn
 * @example
 * const tokens = { heads: 1, tokens: 1, channels: 3, data: Float64Array.of(3, 4, 5) };
 * attendLatents({ query: Float64Array.of(1, 0, 0), tokens, latentDim: 2, scale: 1, after: 0 }); // [3, 4]
 */
export function attendLatents({ query, tokens, latentDim, scale, after }: LatentQuery): Float64Array {
  const rows = headRows(tokens, 0, Math.max(0, tokens.tokens - after));
  return attend({ query, keys: rows, values: rows, scale }).output.subarray(0, latentDim);
}
