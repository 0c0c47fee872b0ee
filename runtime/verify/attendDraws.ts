import fc from 'fast-check';
import { layoutSequence, type SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import { type SequenceLengths, writeRecord } from '../record.js';
import {
  attend,
  type Cache,
  decodeShard,
  emptyTensor,
  headRows,
  normalFrom,
  type ShardParts,
  seededRandom,
  toHalf,
  vectorAt,
} from '../reference/index.js';
import { buildTables } from '../tables.js';
import { halfBits } from './draws.js';
import { packParts } from './packParts.js';
import { streamValues } from './streamValues.js';

/** One sequence with codes of random content: what a kernel reads depends on nothing else. */
export interface SequenceDraw {
  readonly sinks: number;
  readonly middle: number;
  readonly stream: number;
  readonly window: number;
  readonly windowStart: number;
  /** Rows that the parts have beyond those in use. */
  readonly spare: number;
  readonly splits: number;
  /** Magnitude of the largest score, in natural units; 0 is a query of zeros. */
  readonly reach: number;
  /** Query along the key of a token, which then holds nearly all weight if the reach is large. */
  readonly aligned: boolean;
  /** What all keys are multiplied with: models differ by orders of magnitude. */
  readonly magnitude: number;
}

export interface AttendDraw {
  readonly sequences: readonly SequenceDraw[];
  readonly seed: number;
}

/** Lengths from nothing to several tiles, with the edges of a tile more often. */
const length = (most: number) =>
  fc.oneof(
    fc.constantFrom(...[0, 1, 15, 16, 17].filter((tokens) => tokens <= most)),
    fc.integer({ min: 0, max: most }),
  );

/** @param mostReach largest score drawn, in natural units */
export function attendDraws(g: Geometry, mostReach = 40): fc.Arbitrary<AttendDraw> {
  const { sinks, window } = g.scheme;
  const sequence = fc.record({
    sinks: length(sinks),
    middle: length(70),
    stream: length(40),
    window: length(window),
    windowStart: fc.integer({ min: 0, max: window - 1 }),
    spare: fc.integer({ min: 0, max: 3 }),
    splits: fc.integer({ min: 1, max: 8 }),
    reach: fc.constantFrom(...[0, 0.01, 1, 10, 40].filter((reach) => reach <= mostReach)),
    aligned: fc.boolean(),
    magnitude: fc.constantFrom(1, 1e-2, 1e-3, 30),
  });
  return fc.record({ sequences: fc.array(sequence, { minLength: 1, maxLength: 3 }), seed: fc.nat({ max: 0xffff }) });
}

export interface AttendSetting {
  readonly records: Uint32Array;
  readonly cache: Uint8Array;
  readonly query: Uint16Array;
  readonly tables: Float32Array;
  /** [sequences][heads][head dim], in float64 from the same codes. */
  readonly expected: Float64Array;
  readonly sequences: readonly SequenceSetting[];
}

/** One sequence of a setting. */
export interface SequenceSetting {
  readonly layout: SequenceLayout;
  readonly lengths: SequenceLengths;
  /** Its bytes of the cache. */
  readonly share: Uint8Array;
  /** What its codes stand for. */
  readonly decoded: Cache;
}

/** The device memory of a draw, and what attention over it is. Bytes that no kernel may read are 0xff: NaN. */
export function attendSetting(g: Geometry, { sequences, seed }: AttendDraw): AttendSetting {
  const random = seededRandom(seed);
  const layouts = sequences.map(({ middle, stream, spare }) =>
    layoutSequence(g, { tokens: g.scheme.sinks + middle + spare + g.scheme.window, generated: stream + spare }),
  );
  const guard = 256;
  const cache = new Uint8Array(layouts.reduce((bytes, layout) => bytes + layout.bytes + guard, guard)).fill(0xff);
  const records = new Uint32Array(sequences.length * 64);
  const query = new Uint16Array(sequences.length * g.heads * g.headDim);
  const expected = new Float64Array(query.length);
  const longest = Math.max(...sequences.map(({ sinks, middle, stream, window }) => sinks + middle + stream + window));
  const settings: SequenceSetting[] = [];
  let base = guard;
  sequences.forEach((draw, index) => {
    const layout = layouts[index]!;
    const parts = drawParts(g, draw, random);
    const lengths = {
      sinkTokens: draw.sinks,
      middleTokens: draw.middle,
      streamTokens: draw.stream,
      windowTokens: draw.window,
      windowStart: draw.windowStart,
      promptTokens: draw.sinks + draw.middle + draw.window,
    };
    records.set(writeRecord(layout, base, lengths), index * 64);
    const share = cache.subarray(base, base + layout.bytes);
    packParts(g, layout, { ...parts, windowStart: draw.windowStart }, share);
    const decoded = decodeShard(parts);
    settings.push({ layout, lengths, share, decoded });
    for (let head = 0; head < g.heads; head++) {
      const kvHead = Math.floor(head / g.groupSize);
      const q = drawQuery(draw, decoded, kvHead, random);
      const at = (index * g.heads + head) * g.headDim;
      query.set(halfBits(q), at);
      const [keys, values] = [headRows(decoded.keys, kvHead), headRows(decoded.values, kvHead)];
      expected.set(attend({ query: q, keys, values }).output, at);
    }
    base += layout.bytes + guard;
  });
  return { records, cache, query, tables: buildTables(g, longest), expected, sequences: settings };
}

function drawParts(
  g: Geometry,
  { sinks, middle, stream, window, reach, magnitude }: SequenceDraw,
  random: () => number,
): ShardParts {
  const normal = () => normalFrom(random);
  const halves = (length: number, next: () => number) => Float64Array.from({ length }, () => toHalf(next()));
  const below = (limit: number) => Math.floor(random() * limit);
  const key = () => magnitude * normal();
  const meanFactor = random() < 0.3 ? 0 : 1;
  const exact = (tokens: number): Cache => ({
    keys: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halves(tokens * g.width, key) },
    values: { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halves(tokens * g.width, normal) },
  });
  const widthOf = Array.from({ length: g.rank }, (_, r) => {
    const group = g.keyGroups.find(({ firstComponent, components }) => r < firstComponent + components)!;
    return group.bits;
  });
  // As from an encoder: a component without bits has no scale; basis columns have unit length, on average.
  const limitOf = widthOf.map((bits) => (bits === 0 ? 0 : 2 ** (bits - 1) - 1));
  const coefficientScales = Float64Array.from(limitOf, (limit) =>
    limit === 0 ? 0 : toHalf((magnitude * random() * Math.sqrt(g.width)) / limit),
  );
  const streamCodes = () => Uint16Array.from({ length: stream * g.width }, () => below(2 ** g.streamBits));
  const streamNorms = (zeros: boolean, factor: number) =>
    halves(stream * g.kvHeads, () => (zeros && random() < 0.1 ? 0 : factor * Math.exp(normal())));
  return {
    kvHeads: g.kvHeads,
    headDim: g.headDim,
    invFreq: g.model.rope.invFreq,
    sinks: exact(sinks),
    middle: {
      tokens: middle,
      firstPosition: sinks,
      rank: g.rank,
      coefficientCodes: Int32Array.from({ length: middle * g.rank }, (_, i) => {
        const limit = limitOf[i % g.rank]!;
        return below(2 * limit + 1) - limit;
      }),
      coefficientScales,
      basisCodes: Int8Array.from({ length: g.width * g.rank }, () => below(255) - 127),
      basisScales: halves(g.rank, () => (0.5 + random()) / 73 / Math.sqrt(g.width)),
      mean: halves(g.width, () => meanFactor * key()),
      channels: g.channels,
      valueCodes: Uint16Array.from({ length: (middle * g.width) / g.channels }, () => below(g.entries)),
      codebook: halves(g.entries * g.channels, () => random() * 2 - 1),
      channelMax: halves(g.width, () => Math.exp(normal())),
    },
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

/** A query whose largest score has the drawn magnitude, as far as f16 holds it. */
export function drawQuery(
  { reach, aligned }: Pick<SequenceDraw, 'reach' | 'aligned'>,
  { keys }: Cache,
  kvHead: number,
  random: () => number,
): Float64Array {
  const { tokens, channels } = keys;
  const chosen = Math.floor(random() * tokens);
  const direction = Float64Array.from({ length: channels }, (_, i) =>
    aligned && tokens > 0 ? vectorAt(keys, kvHead, chosen)[i]! : normalFrom(random),
  );
  let largest = 0;
  for (let token = 0; token < tokens; token++) {
    const dot = vectorAt(keys, kvHead, token).reduce((sum, k, i) => sum + k * direction[i]!, 0);
    largest = Math.max(largest, Math.abs(dot) / Math.sqrt(channels));
  }
  const factor = largest === 0 ? 1 : reach / largest;
  return direction.map((x) => toHalf(x * factor));
}
