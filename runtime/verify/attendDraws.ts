import fc from 'fast-check';
import { layoutSequence, recordWords, type SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry, ScalarGeometry } from '../../dsl/geometry.js';
import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';
import { type SequenceLengths, writeRecord } from '../record.js';
import { type Cache, decodeSequence, normalFrom, seededRandom, toHalf, vectorAt } from '../reference/index.js';
import { buildTables } from '../tables.js';
import { drawParts } from './drawParts.js';
import { halfBits } from './draws.js';
import { packParts } from './packParts.js';
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

/** Lengths of a middle, with the edges of a block that shares a scale more often; some blocks are longer than `most`. */
function middleLength(g: Geometry, most: number): fc.Arbitrary<number> {
  if (g.family === 'tilt') return fc.oneof(length(most), fc.constantFrom(...tileEdges(g)));
  if (g.family !== 'scalar') return length(most);
  const edges = blockEdges(g);
  return edges.length === 0 ? length(most) : fc.oneof(length(most), fc.constantFrom(...edges));
}

/** Numbers of tokens about the ends of tiles, rows and range blocks, which are aligned to positions. */
export function tileEdges({ tile, rangeBlock, scheme }: TiltGeometry): readonly number[] {
  const ends = new Set([tile, rowPositions, rangeBlock === 128 ? 128 : rowPositions]);
  return [...ends].flatMap((end) => [end - 1, end, end + 1].map((position) => position - scheme.sinks));
}

/** Numbers of tokens about the ends of the blocks that share a scale. */
export function blockEdges({ keys, values }: ScalarGeometry): readonly number[] {
  const sides = new Set([keys.scaleTokens, values.scaleTokens].filter((tokens) => tokens > 1));
  return [...sides].flatMap((tokens) => [tokens - 1, tokens, tokens + 1]);
}

export function attendDraws(g: Geometry): fc.Arbitrary<AttendDraw> {
  const { sinks, window } = g.scheme;
  const sequence = fc.record({
    sinks: length(sinks),
    middle: middleLength(g, 70),
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
    const decoded = decodeSequence(parts);
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

/**
 * Lengths of query and key over the largest score, at most: the sum of a score whose terms are thousands of times larger
 * than all scores is rounded by more than the weights can bear, whatever the kernel.
 */
const worstCancellation = 256;

/** A query whose largest score has the drawn magnitude, as far as f16 holds it and sums do not cancel. */
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
  const lengthOf = (vector: Float64Array) => Math.hypot(...vector);
  let largest = 0;
  let longest = 0;
  for (let token = 0; token < tokens; token++) {
    const key = vectorAt(keys, kvHead, token);
    longest = Math.max(longest, lengthOf(key) * g.model.scoreScale);
    const dot = key.reduce((sum, k, i) => sum + k * direction[i]!, 0);
    largest = Math.max(largest, Math.abs(dot) * g.model.scoreScale);
  }
  const least = (longest * lengthOf(direction)) / worstCancellation;
  const factor = largest === 0 ? 1 : reach / Math.max(largest, least);
  return direction.map((x) => toHalf(x * factor));
}
