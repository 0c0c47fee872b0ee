import type { Geometry } from '../../dsl/geometry.js';
import type { KvCache } from '../cache.js';
import type { SequenceLengths } from '../record.js';
import {
  type Cache,
  type CodedSequence,
  decodeSequence,
  type HeadTensor,
  isScalarParts,
  isTiltParts,
  seededRandom,
} from '../reference/index.js';
import { unpackShare } from '../reference/unpackShare.js';
import { drawQuery } from './attendDraws.js';
import type { QueryDraw } from './caseDraws.js';
import { codeValues } from './codeValues.js';
import { halfBits, halfValues, largestOf, worstError } from './draws.js';
import { clampToHalf, halfRounding, type Judge } from './judge.js';
import { attendVisible } from './visible.js';

/** What every case needs beside its draw. */
export interface Bench {
  readonly judge: Judge;
  /** Largest error of an attention output, over its largest magnitude. */
  readonly bar: number;
  /** The kernels hold decoded keys and values as f16, which saturates. */
  readonly halves: boolean;
}

/** What a sequence of a cache holds, and what it stands for in float64. */
export interface Held {
  readonly lengths: SequenceLengths;
  readonly share: Uint8Array;
  readonly parts: CodedSequence;
  readonly decoded: Cache;
}

export async function readHeld(cache: KvCache, sequence: number): Promise<Held> {
  const lengths = await cache.lengths(sequence);
  const share = await cache.readShare(sequence);
  const g = cache.geometry;
  const parts = { ...unpackShare(g, cache.layout, share, lengths, codeValues(g)), rope: cache.rotation };
  return { lengths, share, parts, decoded: decodeSequence(parts) };
}

/** Attention of drawn queries over all sequences, and the decompressed tokens, against float64 on the same codes. */
export async function checkReads(
  cache: KvCache,
  held: readonly Held[],
  { query, seed }: { readonly query: QueryDraw; readonly seed: number },
  bench: Bench,
): Promise<void> {
  const g = cache.geometry;
  const { judge } = bench;
  // No query is finite whose scores are drawn from keys that are not.
  if (!held.map(({ parts, decoded }, sequence) => areFinite(g, parts, decoded, sequence, judge)).every(Boolean)) return;
  for (const [sequence, one] of held.entries()) {
    checkDecompressed(g, await cache.decompress(sequence), one, `sequence ${sequence}`, judge);
  }
  if (bench.halves && held.some(({ decoded }) => beyondHalf(decoded))) {
    judge.skip('attention in f16 over tokens that decode beyond 65504, where it saturates');
    return;
  }
  const random = seededRandom(seed);
  const { queries, splits } = query;
  const { slidingWindow = 0 } = cache.layer;
  const bits = new Uint16Array(held.length * queries * g.heads * g.headDim);
  const expected = new Float64Array(bits.length);
  for (const [sequence, { decoded }] of held.entries()) {
    for (let row = 0; row < queries * g.heads; row++) {
      const kvHead = Math.floor((row % g.heads) / g.groupSize);
      const q = drawQuery(g, query, { decoded, kvHead }, random);
      const at = (sequence * queries * g.heads + row) * g.headDim;
      bits.set(halfBits(q), at);
      const after = queries - 1 - Math.floor(row / g.heads);
      expected.set(attendVisible(g, decoded, { query: q, kvHead, after, slidingWindow }), at);
    }
  }
  const output = await cache.attend(bits, { queries, splits });
  const where = (sequence: number) => `${splits} splits, ${queries} queries, sequence ${sequence}`;
  checkAttended(g, { output, expected, queries }, where, bench);
}

/** A check that what the codes stand for is finite; where it is not, the codec's number is named if it is the cause. */
function areFinite(g: Geometry, parts: CodedSequence, decoded: Cache, sequence: number, judge: Judge): boolean {
  let finite = true;
  for (const name of ['keys', 'values'] as const) {
    const { tokens, data } = decoded[name];
    const at = data.findIndex((x) => !Number.isFinite(x));
    if (at < 0) continue;
    finite = false;
    const place = `sequence ${sequence}, ${placeOf(g, tokens, at)}`;
    const cause = causeOf(g, parts, name);
    judge.check(`decoded ${name} are not finite: ${place}${cause}`, Number.POSITIVE_INFINITY, 0);
  }
  return finite;
}

/** The number that a codec gave, where it is not finite. */
function causeOf(g: Geometry, parts: CodedSequence, name: keyof Cache): string {
  const { keyNorms, valueNorms } = parts.stream;
  const given = [{ what: 'scale', codec: g.scheme.stream, stored: name === 'keys' ? keyNorms : valueNorms }];
  if (g.family === 'scalar' && isScalarParts(parts)) {
    const { codec } = g[name];
    const { scales, offsets = new Float64Array() } = parts.middle[name];
    given.push({ what: 'scale', codec, stored: scales }, { what: 'offset', codec, stored: offsets });
  }
  if (g.family === 'tilt' && isTiltParts(parts) && name === 'values') {
    const { scales, offsets = new Float64Array() } = parts.middle.tiltValues;
    const { codec } = g.values;
    given.push({ what: 'scale', codec, stored: scales }, { what: 'offset', codec, stored: offsets });
  }
  for (const { what, codec, stored } of given) {
    const broken = stored.find((number) => !Number.isFinite(number));
    if (broken !== undefined) return `, from a stored ${what} of the codec ${codec.name}: ${broken}`;
  }
  return '';
}

export interface AttendOutputs {
  /** [sequences][queries][heads][head dim] */
  readonly output: Float32Array;
  readonly expected: Float64Array;
  readonly queries: number;
}

export function checkAttended(
  g: Geometry,
  { output, expected, queries }: AttendOutputs,
  where: (sequence: number) => string,
  { judge, bar, halves }: Bench,
): void {
  const row = queries * g.heads * g.headDim;
  for (let sequence = 0; sequence * row < expected.length; sequence++) {
    const judged = expected.subarray(sequence * row, (sequence + 1) * row);
    const { at, by } = worstError(output.subarray(sequence * row, (sequence + 1) * row), judged, row);
    const head = Math.floor(at / g.headDim) % g.heads;
    const place = `${where(sequence)}, head ${head}, channel ${at % g.headDim}`;
    // Values as f16 are multiples of its smallest step, which counts where all of them are tiny.
    const step = halves ? halfRounding(0) / Math.max(largestOf(judged), 2 ** -24) : 0;
    judge.output(`attend: ${place}`, by, bar + step);
  }
}

/** Decompressed tokens against the reference: copies to the bit, the others to f16, which saturates. */
export function checkDecompressed(
  g: Geometry,
  actual: { readonly keys: Uint16Array; readonly values: Uint16Array },
  { decoded, lengths }: Pick<Held, 'decoded' | 'lengths'>,
  where: string,
  judge: Judge,
): void {
  for (const name of ['keys', 'values'] as const) {
    const { tokens, data } = decoded[name];
    const expected = data.map(clampToHalf);
    const result = halfValues(actual[name].subarray(0, data.length));
    const { at, by } = worstError(result, expected, data.length || 1);
    // Where all is tiny, a step of float16 is more than that.
    const step = halfRounding(0) / Math.max(largestOf(expected), 2 ** -24);
    judge.check(`decompress, ${name}: ${where}, ${placeOf(g, tokens, at)}`, by, 2e-3 + step);
    const wrong = data.findIndex((x, i) => {
      const token = Math.floor(i / g.headDim) % tokens;
      const copied = token < lengths.sinkTokens || token >= tokens - lengths.windowTokens;
      return copied && !Object.is(x, result[i]);
    });
    judge.check(`decompress, copied ${name}: ${where}, ${placeOf(g, tokens, wrong)}`, wrong < 0 ? 0 : 1, 0);
  }
}

function placeOf(g: Geometry, tokens: number, at: number): string {
  const vector = Math.floor(at / g.headDim);
  return `KV head ${Math.floor(vector / tokens)}, token ${vector % tokens}, channel ${at % g.headDim}`;
}

/** Tokens that are kept as they are: a single different bit fails. */
export function checkExact(
  g: Geometry,
  segment: HeadTensor,
  tokenAt: (token: number) => Float64Array,
  where: string,
  judge: Judge,
): void {
  for (let head = 0; head < segment.heads; head++) {
    for (let token = 0; token < segment.tokens; token++) {
      const start = (head * segment.tokens + token) * g.headDim;
      const exact = tokenAt(token).subarray(head * g.headDim, (head + 1) * g.headDim);
      const channel = exact.findIndex((x, i) => !Object.is(x, segment.data[start + i]!));
      if (channel < 0) continue;
      const error = Math.abs(exact[channel]! - segment.data[start + channel]!);
      judge.check(`${where}, KV head ${head}, token ${token}, channel ${channel}`, error || Number.MIN_VALUE, 0);
      return;
    }
  }
}

export function beyondHalf({ keys, values }: Cache): boolean {
  return Math.max(largestOf(keys.data), largestOf(values.data)) > 65504;
}
