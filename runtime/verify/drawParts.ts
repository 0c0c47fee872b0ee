import type { Geometry } from '../../dsl/geometry.js';
import {
  type Cache,
  type CodedSequence,
  emptyTensor,
  normalFrom,
  type SequenceParts,
  toHalf,
} from '../reference/index.js';
import type { SequenceDraw } from './attendDraws.js';
import { drawScalarMiddle } from './drawScalarMiddle.js';
import { drawShardMiddle } from './drawShardMiddle.js';
import { drawTiltMiddle } from './drawTiltMiddle.js';
import { streamValues } from './streamValues.js';

/** Random numbers of several kinds, all from one seed. */
export interface Drawing {
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly normal: () => number;
  /** As float16. */
  readonly halves: (length: number, next: () => number) => Float64Array;
  /** A whole number below the limit. */
  readonly below: (limit: number) => number;
}

/** The parts of one sequence, with codes of random content. */
export function drawParts(g: Geometry, draw: SequenceDraw, random: () => number): CodedSequence {
  if (g.family === 'latent') throw new TypeError('latents are drawn by latentCase');
  const drawing: Drawing = {
    random,
    normal: () => normalFrom(random),
    halves: (length, next) => Float64Array.from({ length }, () => toHalf(next())),
    below: (limit) => Math.floor(random() * limit),
  };
  if (g.family === 'tilt') return withSegments(g, draw, drawing, drawTiltMiddle(g, draw, drawing));
  return g.family === 'scalar'
    ? withSegments(g, draw, drawing, drawScalarMiddle(g, draw, drawing))
    : withSegments(g, draw, drawing, drawShardMiddle(g, draw, drawing));
}

function withSegments<Middle>(
  g: Geometry,
  { sinks, stream, window, reach, magnitude }: SequenceDraw,
  { random, normal, halves, below }: Drawing,
  middle: () => Middle,
): SequenceParts<Middle> {
  const key = () => magnitude * normal();
  const exact = (tokens: number): Cache => ({
    keys: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halves(tokens * g.width, key) },
    values: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halves(tokens * g.width, normal) },
  });
  const streamCodes = () => Uint16Array.from({ length: stream * g.width }, () => below(2 ** g.streamBits));
  const streamNorms = (zeros: boolean, factor: number) =>
    halves(stream * g.kvHeads, () => (zeros && random() < 0.1 ? 0 : factor * Math.exp(normal())));
  return {
    kvHeads: g.kvHeads,
    headDim: g.headDim,
    rope: g.model.rope,
    sinks: exact(sinks),
    middle: middle(),
    stream: {
      tokens: stream,
      keyCodes: streamCodes(),
      valueCodes: streamCodes(),
      keyNorms: streamNorms(true, magnitude),
      // Were the token of nearly all weight zero, the output would be the others', whose weights f16 does not hold.
      valueNorms: streamNorms(reach <= 1, 1),
      // Whether it is a good table is for the codec's own tests.
      levels: streamValues(g),
    },
    window: exact(window),
  };
}
