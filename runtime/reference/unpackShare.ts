import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry, LowRankGeometry } from '../../dsl/geometry.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import type { SequenceLengths } from '../record.js';
import type { ScalarParts } from './scalar.js';
import type { HalfSegment, SequenceParts, StreamSegment } from './segments.js';
import type { CodedSequence } from './sequence.js';
import { emptyTensor, type HeadTensor, vectorAt } from './shapes.js';
import type { ShardParts } from './shard.js';
import { ShareReader } from './shareReader.js';
import type { TiltParts } from './tilt.js';
import { type MiddleValues, unpackScalarMiddle } from './unpackScalar.js';
import { unpackShardMiddle } from './unpackShard.js';
import { unpackTiltMiddle } from './unpackTilt.js';

/** What the codes of a scheme stand for, over their scales; by code. */
export interface CodeValues {
  readonly stream: ArrayLike<number>;
  /** Of schemes that code every channel of the middle by itself. */
  readonly middle?: MiddleValues;
}

/**
 * Reads the codes of one sequence out of its share of the cache buffer, bit by bit, so that a kernel and the float64
 * reference can be held to the same codes.
 *
 * @param share the sequence's bytes, as `KvCache.readShare` returns them
 * @param values as the kernels have them (float32)
 */
export function unpackShare<G extends Geometry>(
  g: G,
  layout: SequenceLayout,
  share: Uint8Array,
  lengths: SequenceLengths,
  values: CodeValues,
): PartsOf<G>;
export function unpackShare(
  g: Geometry,
  layout: SequenceLayout,
  share: Uint8Array,
  lengths: SequenceLengths,
  values: CodeValues,
): CodedSequence {
  if (g.family === 'latent') throw new TypeError('latents are read by unpackLatent');
  const reader = new ShareReader(layout, share);
  const segments = unpackSegments(g, reader, lengths, values.stream);
  if (g.family === 'tilt') {
    return { ...segments, middle: unpackTiltMiddle(g, reader, lengths, values.middle!.values) };
  }
  return g.family === 'scalar'
    ? { ...segments, middle: unpackScalarMiddle(g, reader, lengths, values.middle!) }
    : { ...segments, middle: unpackShardMiddle(g, reader, lengths) };
}

/** The parts of a geometry's family. */
type PartsOf<G extends Geometry> = G extends TiltGeometry
  ? TiltParts
  : G extends LowRankGeometry
    ? ShardParts
    : ScalarParts;

function unpackSegments(
  g: Geometry,
  reader: ShareReader,
  { sinkTokens, streamTokens, windowTokens, windowStart }: SequenceLengths,
  levels: ArrayLike<number>,
): Omit<SequenceParts<unknown>, 'middle'> {
  const exact = (name: PartName, tokens: number, slot: (token: number) => number): HeadTensor => {
    const tensor = emptyTensor(g.kvHeads, tokens, g.headDim);
    for (let token = 0; token < tokens; token++) {
      const row = reader.halves(name, g.width, slot(token) * g.width);
      for (let head = 0; head < g.kvHeads; head++) {
        vectorAt(tensor, head, token).set(row.subarray(head * g.headDim, (head + 1) * g.headDim));
      }
    }
    return tensor;
  };
  const kept = (
    names: readonly [PartName, PartName],
    tokens: number,
    slot: (token: number) => number,
  ): HalfSegment => ({
    keys: exact(names[0], tokens, slot),
    values: exact(names[1], tokens, slot),
  });
  const ring = (token: number) => (windowStart + token) % g.scheme.window;
  return {
    kvHeads: g.kvHeads,
    headDim: g.headDim,
    rope: g.model.rope,
    sinks: kept(['sinkKeys', 'sinkValues'], sinkTokens, (token) => token),
    stream: unpackStream(g, reader, streamTokens, levels),
    window: kept(['windowKeys', 'windowValues'], windowTokens, ring),
  };
}

function unpackStream(g: Geometry, reader: ShareReader, tokens: number, levels: ArrayLike<number>): StreamSegment {
  const vectors = { count: g.headDim, words: g.streamWords, bits: g.streamBits };
  const codes = (name: PartName) => Uint16Array.from(reader.fieldRows(name, tokens * g.kvHeads, vectors));
  const norms = (name: PartName) => reader.halfRows(name, tokens, { count: g.kvHeads, words: g.normWords });
  return {
    tokens,
    keyCodes: codes('streamKeyCodes'),
    valueCodes: codes('streamValueCodes'),
    keyNorms: norms('streamKeyNorms'),
    valueNorms: norms('streamValueNorms'),
    levels: Float64Array.from(levels),
  };
}
