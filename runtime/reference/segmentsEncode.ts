import type { ModelShape } from '../../dsl/model.js';
import { encodeStream, lloydMaxLevels } from './lloydMax.js';
import { toHalf } from './quantize.js';
import type { SequenceParts, StreamSegment } from './segments.js';
import { type Cache, emptyTensor, type HeadTensor, vectorAt } from './shapes.js';

/** What of a prompt is kept or coded token by token, the rest being the middle. */
export interface SegmentOptions {
  /** Tokens at the start kept as they are. */
  readonly sinks: number;
  /** Tokens at the end kept as they are; sinks come first where a prompt is too short for both. */
  readonly window: number;
  /** Tokens before the window that are coded one by one, as if generated; 0 if left out. */
  readonly stream?: number;
  /** 8 if left out. */
  readonly streamBits?: number;
}

/** All of a prompt but its middle, and which tokens that is. */
export interface EncodedSegments extends Pick<SequenceParts<unknown>, 'sinks' | 'stream' | 'window'> {
  readonly middle: { readonly first: number; readonly tokens: number };
}

/** Refuses a cache that is not the model's, or not finite. */
export function requireCache({ keys, values }: Cache, model: ModelShape): void {
  const faults: [fault: boolean, message: string][] = [
    [keys.heads !== model.kvHeads || keys.channels !== model.headDim, 'keys do not have the heads of the model'],
    [values.heads !== keys.heads || values.tokens !== keys.tokens, 'values do not have the shape of the keys'],
    [values.channels !== keys.channels, 'values do not have the shape of the keys'],
    [!keys.data.every(Number.isFinite) || !values.data.every(Number.isFinite), 'the cache is not finite'],
  ];
  for (const [fault, message] of faults) if (fault) throw new RangeError(message);
}

/** Splits a prompt into its segments and codes those that every scheme codes alike. */
export function encodeSegments(cache: Cache, options: SegmentOptions): EncodedSegments {
  const total = cache.keys.tokens;
  const sinks = Math.min(options.sinks, total);
  const window = Math.min(options.window, total - sinks);
  const stream = Math.min(options.stream ?? 0, total - sinks - window);
  const middle = total - sinks - window - stream;
  return {
    sinks: kept(cache, 0, sinks),
    middle: { first: sinks, tokens: middle },
    stream: encodeTokens(
      sliceTokens(cache.keys, sinks + middle, stream),
      sliceTokens(cache.values, sinks + middle, stream),
      options.streamBits ?? 8,
    ),
    window: kept(cache, total - window, window),
  };
}

function encodeTokens(keys: HeadTensor, values: HeadTensor, bits: number): StreamSegment {
  const { heads, tokens, channels: d } = keys;
  const levels = lloydMaxLevels(bits, d);
  const code = (tensor: HeadTensor) => {
    const codes = new Uint16Array(tokens * heads * d);
    const norms = new Float64Array(tokens * heads);
    for (let token = 0; token < tokens; token++) {
      for (let head = 0; head < heads; head++) {
        const vector = token * heads + head;
        const coded = encodeStream(vectorAt(tensor, head, token), levels);
        codes.set(coded.codes, vector * d);
        norms[vector] = coded.norm;
      }
    }
    return { codes, norms };
  };
  const key = code(keys);
  const value = code(values);
  return {
    tokens,
    keyCodes: key.codes,
    keyNorms: key.norms,
    valueCodes: value.codes,
    valueNorms: value.norms,
    levels,
  };
}

function kept({ keys, values }: Cache, first: number, count: number): Cache {
  const half = (tensor: HeadTensor) => {
    const part = sliceTokens(tensor, first, count);
    return { ...part, data: part.data.map(toHalf) };
  };
  return { keys: half(keys), values: half(values) };
}

/** `count` tokens of every head from token `first` on. */
export function sliceTokens(tensor: HeadTensor, first: number, count: number): HeadTensor {
  const part = emptyTensor(tensor.heads, count, tensor.channels);
  for (let head = 0; head < tensor.heads; head++) {
    for (let token = 0; token < count; token++) {
      vectorAt(part, head, token).set(vectorAt(tensor, head, first + token));
    }
  }
  return part;
}
