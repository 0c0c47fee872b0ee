import fc from 'fast-check';
import type { HeadGeometry } from '../../dsl/headGeometry.js';
import { fp16PartialWords, fp16RecordWords } from '../../dsl/stages/attendFp16.js';
import { workItemWords } from '../../dsl/stages/attendPlan.js';
import type { LoadedKernels } from '../kernels.js';
import { type Cache, normalFrom, seededRandom, toHalf } from '../reference/index.js';
import { drawQuery } from './attendDraws.js';
import { halfBits } from './draws.js';
import { asFloats, runKernel } from './run.js';
import { attendVisible } from './visible.js';

/** One sequence of an uncompressed cache, with numbers of random content. */
export interface Fp16SequenceDraw {
  readonly tokens: number;
  readonly splits: number;
  /** Tokens that a query sees, its own included; 0 for all. */
  readonly slidingWindow: number;
  /** Magnitude of the largest score, in natural units; 0 is a query of zeros. */
  readonly reach: number;
  /** Query along the key of a token, which then holds nearly all weight if the reach is large. */
  readonly aligned: boolean;
}

export interface Fp16Draw {
  readonly sequences: readonly Fp16SequenceDraw[];
  /** Tokens that each sequence has room for, beyond those of the longest. */
  readonly spare: number;
  /** Query tokens of every sequence, its last ones; there may be more of them than tokens. */
  readonly queries: number;
  readonly seed: number;
}

/** Lengths from nothing to several tiles for every warp, with the edges of a tile more often; more splits than tokens too. */
export function fp16Draws(): fc.Arbitrary<Fp16Draw> {
  const sequence = fc.record({
    tokens: fc.oneof(fc.constantFrom(0, 1, 15, 16, 17, 31, 32, 33), fc.integer({ min: 0, max: 260 })),
    splits: fc.integer({ min: 1, max: 8 }),
    slidingWindow: fc.oneof(
      { weight: 3, arbitrary: fc.constant(0) },
      { weight: 1, arbitrary: fc.constantFrom(1, 16, 17) },
      { weight: 1, arbitrary: fc.integer({ min: 1, max: 300 }) },
    ),
    reach: fc.constantFrom(0, 0.01, 1, 10, 40),
    aligned: fc.boolean(),
  });
  return fc.record({
    sequences: fc.array(sequence, { minLength: 1, maxLength: 3 }),
    spare: fc.integer({ min: 0, max: 3 }),
    queries: fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 1, arbitrary: fc.constantFrom(2, 3) }),
    seed: fc.nat({ max: 0xffff }),
  });
}

export interface Fp16Setting {
  readonly records: Uint32Array;
  /** f16 bits [sequences][KV heads][room][head dim]; NaN where no token is. */
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
  readonly query: Uint16Array;
  readonly work: Uint32Array;
  /** [sequences][queries][heads][head dim], in float64 from the same numbers. */
  readonly expected: Float64Array;
}

/** The device memory of a draw, and what attention over it is. */
export function fp16Setting(g: HeadGeometry, draw: Fp16Draw): Fp16Setting {
  const { sequences, queries, seed, spare } = draw;
  const random = seededRandom(seed);
  const room = Math.max(1, ...sequences.map(({ tokens }) => tokens)) + spare;
  const size = sequences.length * g.kvHeads * room * g.headDim;
  const [keys, values] = [new Uint16Array(size).fill(0xffff), new Uint16Array(size).fill(0xffff)];
  const records = new Uint32Array(sequences.length * fp16RecordWords);
  const query = new Uint16Array(sequences.length * queries * g.heads * g.headDim);
  const expected = new Float64Array(query.length);
  for (const [index, sequence] of sequences.entries()) {
    const { tokens, slidingWindow } = sequence;
    records.set([tokens, room, slidingWindow], index * fp16RecordWords);
    const normal = () => ({
      heads: g.kvHeads,
      tokens,
      channels: g.headDim,
      data: Float64Array.from({ length: g.kvHeads * tokens * g.headDim }, () => toHalf(normalFrom(random))),
    });
    const held: Cache = { keys: normal(), values: normal() };
    for (let kvHead = 0; kvHead < g.kvHeads; kvHead++) {
      const at = (index * g.kvHeads + kvHead) * room * g.headDim;
      const rows = (data: Float64Array) =>
        halfBits(data.subarray(kvHead * tokens * g.headDim, (kvHead + 1) * tokens * g.headDim));
      keys.set(rows(held.keys.data), at);
      values.set(rows(held.values.data), at);
    }
    for (let row = 0; row < queries * g.heads; row++) {
      const kvHead = Math.floor((row % g.heads) / g.groupSize);
      const drawn = drawQuery(g, sequence, { decoded: held, kvHead }, random);
      const after = queries - 1 - Math.floor(row / g.heads);
      const at = (index * queries * g.heads + row) * g.headDim;
      query.set(halfBits(drawn), at);
      expected.set(attendVisible(g, held, { query: drawn, kvHead, after, slidingWindow }), at);
    }
  }
  return { records, keys, values, query, work: workOf(g, draw), expected };
}

/** Rows in an order of their own, each with the splits of its sequence, side by side. */
function workOf({ kvHeads }: HeadGeometry, { sequences, queries, seed }: Fp16Draw): Uint32Array {
  const rows = sequences.flatMap(({ splits }, sequence) =>
    Array.from({ length: queries * kvHeads }, (_, i) => {
      const query = Math.floor(i / kvHeads);
      return { sequence, kvHead: i % kvHeads, row: sequence * queries + query, after: queries - 1 - query, splits };
    }),
  );
  return Uint32Array.from(
    rows.flatMap((_, i) => {
      const { sequence, kvHead, row, after, splits } = rows[(i + seed) % rows.length]!;
      return Array.from({ length: splits }, (_, split) => [sequence, kvHead, row, after, split, splits]).flat();
    }),
  );
}

export interface Fp16Attended {
  readonly output: Float32Array;
  /** As the kernel left them; zero where it has none. */
  readonly counters: Uint32Array;
}

/** Attention over a drawn setting, in buffers of its own. */
export async function attendFp16On(kernels: LoadedKernels<HeadGeometry>, setting: Fp16Setting): Promise<Fp16Attended> {
  const { geometry: g, device } = kernels;
  const { work, records, keys, values, query } = setting;
  const workItems = work.length / workItemWords;
  const counters = new Uint32Array((setting.expected.length / g.headDim / g.heads) * g.kvHeads);
  const partials = { bytes: workItems * fp16PartialWords(g) * 4 };
  const inputs = { sequences: records, work, keys, values, query, partials };
  const output = { bytes: setting.expected.length * 4 };
  if (device.target === 'cuda') {
    const results = await runKernel(kernels, 'attend_fp16', { workItems }, { ...inputs, output, counters });
    return { output: asFloats(results.output!), counters: new Uint32Array(results.counters!.buffer) };
  }
  const first = await runKernel(kernels, 'attend_fp16', { workItems }, inputs);
  const merged = await runKernel(
    kernels,
    'attend_fp16_merge',
    { workItems },
    {
      work,
      partials: first.partials!,
      output,
    },
  );
  return { output: asFloats(merged.output!), counters };
}
