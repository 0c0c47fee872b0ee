import fc from 'fast-check';
import { layoutSequence, recordWords, type SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import { type SequenceLengths, writeRecord } from '../record.js';
import {
  type Cache,
  decodeShard,
  emptyTensor,
  normalFrom,
  pairChannels,
  type ShardParts,
  seededRandom,
  toHalf,
  vectorAt,
} from '../reference/index.js';
import { buildTables } from '../tables.js';
import { halfBits } from './draws.js';
import { packParts } from './packParts.js';
import { streamValues } from './streamValues.js';
import { attendVisible } from './visible.js';

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
  /** Tokens that a query sees, its own included; 0 for all. */
  readonly slidingWindow: number;
  /** Magnitude of the largest score, in natural units; 0 is a query of zeros. */
  readonly reach: number;
  /** Query along the key of a token, which then holds nearly all weight if the reach is large. */
  readonly aligned: boolean;
  /** What all keys are multiplied with: models differ by orders of magnitude. */
  readonly magnitude: number;
}

export interface AttendDraw {
  readonly sequences: readonly SequenceDraw[];
  /** Query tokens of every sequence, its last ones; there may be more of them than tokens. */
  readonly queries: number;
  readonly seed: number;
}

/** Lengths from nothing to several tiles, with the edges of a tile more often. */
const length = (most: number) =>
  fc.oneof(
    fc.constantFrom(...[0, 1, 15, 16, 17].filter((tokens) => tokens <= most)),
    fc.integer({ min: 0, max: most }),
  );

export function attendDraws(g: Geometry): fc.Arbitrary<AttendDraw> {
  const { sinks, window } = g.scheme;
  const sequence = fc.record({
    sinks: length(sinks),
    middle: length(70),
    stream: length(40),
    window: length(window),
    windowStart: fc.integer({ min: 0, max: window - 1 }),
    spare: fc.integer({ min: 0, max: 3 }),
    splits: fc.integer({ min: 1, max: 8 }),
    slidingWindow: fc.oneof(
      { weight: 3, arbitrary: fc.constant(0) },
      { weight: 1, arbitrary: fc.constantFrom(1, 16, 17) },
      { weight: 1, arbitrary: fc.integer({ min: 1, max: 120 }) },
    ),
    reach: fc.constantFrom(0, 0.01, 1, 10, 40),
    aligned: fc.boolean(),
    magnitude: fc.constantFrom(1, 1e-2, 1e-3, 30),
  });
  return fc.record({
    sequences: fc.array(sequence, { minLength: 1, maxLength: 3 }),
    queries: fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 1, arbitrary: fc.constantFrom(2, 3) }),
    seed: fc.nat({ max: 0xffff }),
  });
}

export interface AttendSetting {
  readonly records: Uint32Array;
  readonly cache: Uint8Array;
  readonly query: Uint16Array;
  readonly tables: Float32Array;
  /** [sequences][queries][heads][head dim], in float64 from the same codes. */
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
export function attendSetting(g: Geometry, { sequences, queries, seed }: AttendDraw): AttendSetting {
  const random = seededRandom(seed);
  const layouts = sequences.map(({ middle, stream, spare }) =>
    layoutSequence(g, { tokens: g.scheme.sinks + middle + spare + g.scheme.window, generated: stream + spare }),
  );
  const guard = 256;
  const cache = new Uint8Array(layouts.reduce((bytes, layout) => bytes + layout.bytes + guard, guard)).fill(0xff);
  const records = new Uint32Array(sequences.length * recordWords);
  const query = new Uint16Array(sequences.length * queries * g.heads * g.headDim);
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
    const { slidingWindow } = draw;
    records.set(writeRecord(layout, base, lengths, { slidingWindow }), index * recordWords);
    const share = cache.subarray(base, base + layout.bytes);
    packParts(g, layout, { ...parts, windowStart: draw.windowStart }, share);
    const decoded = decodeShard(parts);
    settings.push({ layout, lengths, share, decoded });
    for (let row = 0; row < queries * g.heads; row++) {
      const kvHead = Math.floor((row % g.heads) / g.groupSize);
      const q = drawQuery(g, draw, { decoded, kvHead }, random);
      const at = (index * queries * g.heads + row) * g.headDim;
      query.set(halfBits(q), at);
      const after = queries - 1 - Math.floor(row / g.heads);
      expected.set(attendVisible(g, decoded, { query: q, kvHead, after, slidingWindow }), at);
    }
    base += layout.bytes + guard;
  });
  return {
    records,
    cache,
    query,
    tables: buildTables(g, longest, g.model.rope.invFreq),
    expected,
    sequences: settings,
  };
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
  const groupBits = drawWidths(g, below);
  const widthOf = Array.from({ length: g.rank }, (_, r) => {
    if (g.allocatedGroups > 0) return groupBits[Math.floor(r / 16)]!;
    const group = g.keyGroups.find(({ firstComponent, components }) => r < firstComponent + components)!;
    return group.bits;
  });
  // As from an encoder: a component without bits has no scale; basis columns have unit length, on average. Mid-rise
  // codes reach half a step further down than up, and there are as many of them as fields.
  const limitOf = widthOf.map((bits) => (bits === 0 ? 0 : 2 ** (bits - 1) - (g.allocatedGroups > 0 ? 0 : 1)));
  const coefficientScales = Float64Array.from(limitOf, (limit) =>
    limit === 0 ? 0 : toHalf((magnitude * random() * Math.sqrt(g.width)) / limit),
  );
  const streamCodes = () => Uint16Array.from({ length: stream * g.width }, () => below(2 ** g.streamBits));
  const streamNorms = (zeros: boolean, factor: number) =>
    halves(stream * g.kvHeads, () => (zeros && random() < 0.1 ? 0 : factor * Math.exp(normal())));
  const weights = drawWeights(g, random);
  // The basis is of weighted keys: of an entry as small as the least weight, rounding leaves 1 at most. Anything more
  // would stand for keys beyond f16.
  const basisCodes = Int8Array.from({ length: g.width * g.rank }, (_, i) => {
    const code = below(255) - 127;
    return weights[Math.floor(i / g.rank)]! > toHalf(leastWeight) ? code : Math.round(code / 127);
  });
  return {
    kvHeads: g.kvHeads,
    headDim: g.headDim,
    rope: g.model.rope,
    sinks: exact(sinks),
    middle: {
      tokens: middle,
      firstPosition: sinks,
      rank: g.rank,
      coefficientCodes: Int32Array.from({ length: middle * g.rank }, (_, i) => {
        const limit = limitOf[i % g.rank]!;
        return below(2 * limit + (g.allocatedGroups > 0 ? 0 : 1)) - limit;
      }),
      codeOffset: g.allocatedGroups > 0 ? 0.5 : 0,
      ...(g.allocatedGroups > 0 ? { groupBits } : {}),
      coefficientScales,
      basisCodes,
      basisScales: halves(g.rank, () => (0.5 + random()) / 73 / Math.sqrt(g.width)),
      mean: halves(g.width, () => meanFactor * key()),
      weights,
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

/** Widths as an encoder may find them: in no order, and not always all of the budget. */
function drawWidths(g: Geometry, below: (limit: number) => number): number[] {
  const widths = [0, 1, 2, 3, 4, 5, 6, 8];
  let left = g.keyRowWords * 2;
  return Array.from({ length: g.allocatedGroups }, () => {
    const bits = widths[below(widths.length)]!;
    if (bits > left) return 0;
    left -= bits;
    return bits;
  });
}

/** What an encoder gives channels that the queries do not ask for. */
const leastWeight = 1e-3;

/** Between 1/8 and 1, for some channels the least that an encoder gives, and the same for both channels of a rotary pair. */
function drawWeights(g: Geometry, random: () => number): Float64Array {
  const weights = new Float64Array(g.width).fill(1);
  if (!g.weighted) return weights;
  // Keys are largest where weights are least: in every other draw all channels have a say.
  const atLeast = random() < 0.5 ? 0 : 0.1;
  for (let i = 0; i < g.width; i++) weights[i] = toHalf(random() < atLeast ? leastWeight : 2 ** (-3 * random()));
  for (let head = 0; head < g.kvHeads; head++) {
    for (let j = 0; j < g.rotaryPairs; j++) {
      const [a, b] = pairChannels(g.model.rope, j);
      weights[head * g.headDim + b] = weights[head * g.headDim + a]!;
    }
  }
  return weights;
}

/** A query whose largest score has the drawn magnitude, as far as f16 holds it. */
export function drawQuery(
  g: Pick<Geometry, 'model'>,
  { reach, aligned }: Pick<SequenceDraw, 'reach' | 'aligned'>,
  { decoded, kvHead }: { readonly decoded: Cache; readonly kvHead: number },
  random: () => number,
): Float64Array {
  const { keys } = decoded;
  const { tokens, channels } = keys;
  const chosen = Math.floor(random() * tokens);
  const direction = Float64Array.from({ length: channels }, (_, i) =>
    aligned && tokens > 0 ? vectorAt(keys, kvHead, chosen)[i]! : normalFrom(random),
  );
  let largest = 0;
  for (let token = 0; token < tokens; token++) {
    const dot = vectorAt(keys, kvHead, token).reduce((sum, k, i) => sum + k * direction[i]!, 0);
    largest = Math.max(largest, Math.abs(dot) * g.model.scoreScale);
  }
  const factor = largest === 0 ? 1 : reach / largest;
  return direction.map((x) => toHalf(x * factor));
}
