import type { Geometry } from '../../dsl/geometry.js';
import { partialWords, workItemWords } from '../../dsl/stages/attendPlan.js';
import type { LoadedKernels } from '../kernels.js';
import type { AttendDraw, AttendSetting } from './attendDraws.js';
import { asFloats, runKernel } from './run.js';

/** Rows in an order of their own, each with the splits of its sequence, side by side. */
function workOf(g: Geometry, { sequences, queries, seed }: AttendDraw): Uint32Array {
  const rows = sequences.flatMap(({ splits }, sequence) =>
    Array.from({ length: queries * g.kvHeads }, (_, i) => ({
      sequence,
      kvHead: i % g.kvHeads,
      row: sequence * queries + Math.floor(i / g.kvHeads),
      after: queries - 1 - Math.floor(i / g.kvHeads),
      splits,
    })),
  );
  const turned = rows.map((_, i) => rows[(i + seed) % rows.length]!);
  return Uint32Array.from(
    turned.flatMap(({ sequence, kvHead, row, after, splits }) =>
      Array.from({ length: splits }, (_, split) => [sequence, kvHead, row, after, split, splits]).flat(),
    ),
  );
}

export interface Attended {
  readonly output: Float32Array;
  readonly counters: Uint32Array;
}

/** Attention over a drawn setting, in buffers of its own; counters as the kernel left them, zero where it has none. */
export async function attendOn(kernels: LoadedKernels, draw: AttendDraw, setting: AttendSetting): Promise<Attended> {
  const g = kernels.geometry;
  const work = workOf(g, draw);
  const workItems = work.length / workItemWords;
  const counters = new Uint32Array(draw.sequences.length * draw.queries * g.kvHeads);
  const inputs = {
    sequences: setting.records,
    work,
    cache: setting.cache,
    query: setting.query,
    tables: setting.tables,
    partials: { bytes: workItems * partialWords(g) * 4 },
  };
  const output = { bytes: setting.expected.length * 4 };
  if (kernels.device.target === 'cuda') {
    const results = await runKernel(kernels, 'attend', { workItems }, { ...inputs, output, counters });
    return { output: asFloats(results.output!), counters: new Uint32Array(results.counters!.buffer) };
  }
  const { partials } = await runKernel(kernels, 'attend', { workItems }, inputs);
  const merged = await runKernel(kernels, 'attend_merge', { workItems }, { work, partials: partials!, output });
  return { output: asFloats(merged.output!), counters };
}
