import { type HeadTensor, headRows } from '../reference/shapes.js';
import type { ShardParts } from '../reference/shard.js';

/**
 * The parts of one KV head alone, as those of a cache that has no other: decoding all heads of a long sequence in
 * float64 takes minutes, and one head shows an error of the arithmetic as well.
 */
export function partsOfHead(parts: ShardParts, head: number): ShardParts {
  const { headDim: d, kvHeads, middle, stream } = parts;
  const tensor = (all: HeadTensor): HeadTensor => ({ ...all, heads: 1, data: headRows(all, head).data });
  const segment = ({ keys, values }: ShardParts['sinks']) => ({ keys: tensor(keys), values: tensor(values) });
  const channels = (all: Float64Array) => all.slice(head * d, (head + 1) * d);
  const vectors = d / middle.channels;
  const valueCodes = new Uint16Array(middle.tokens * vectors);
  for (let token = 0; token < middle.tokens; token++) {
    const from = (token * kvHeads + head) * vectors;
    valueCodes.set(middle.valueCodes.subarray(from, from + vectors), token * vectors);
  }
  const vectorsOf = <T>(pick: (vector: number) => ArrayLike<T>): readonly T[] =>
    Array.from({ length: stream.tokens }, (_, token) => Array.from(pick(token * kvHeads + head))).flat();
  const codes = (all: Uint16Array) =>
    Uint16Array.from(vectorsOf((vector) => all.subarray(vector * d, (vector + 1) * d)));
  const norms = (all: Float64Array) => Float64Array.from(vectorsOf((vector) => [all[vector]!]));
  return {
    ...parts,
    kvHeads: 1,
    sinks: segment(parts.sinks),
    window: segment(parts.window),
    middle: {
      ...middle,
      basisCodes: middle.basisCodes.slice(head * d * middle.rank, (head + 1) * d * middle.rank),
      mean: channels(middle.mean),
      weights: channels(middle.weights),
      valueCodes,
      channelMax: channels(middle.channelMax),
    },
    stream: {
      ...stream,
      keyCodes: codes(stream.keyCodes),
      valueCodes: codes(stream.valueCodes),
      keyNorms: norms(stream.keyNorms),
      valueNorms: norms(stream.valueNorms),
    },
  };
}
