import { recordWords } from '../../codegen/plan/layout.js';
import type { LoadedKernels } from '../kernels.js';
import { type AttendDraw, attendSetting } from './attendDraws.js';
import { attendOn } from './attendOn.js';
import { type Bench, checkAttended, checkDecompressed } from './held.js';
import { asHalfBits, runKernel } from './run.js';

/** Attention over codes of random content. */
export async function attendCase(kernels: LoadedKernels, draw: AttendDraw, bench: Bench): Promise<void> {
  const setting = attendSetting(kernels.geometry, draw);
  const { output, counters } = await attendOn(kernels, draw, setting);
  const where = (index: number) => {
    const { sinks, middle, stream, window, slidingWindow, splits, reach } = draw.sequences[index]!;
    const tokens = `${sinks} + ${middle} + ${stream} + ${window} tokens`;
    const seen = slidingWindow > 0 ? `, ${slidingWindow} seen` : '';
    return `sequence ${index} (${tokens}${seen}, ${draw.queries} queries, ${splits} splits, scores to ${reach})`;
  };
  checkAttended(kernels.geometry, { output, expected: setting.expected, queries: draw.queries }, where, bench);
  bench.judge.check(
    'attend: counters that are not zero again',
    counters.reduce((sum, count) => sum + (count === 0 ? 0 : 1), 0),
    0,
  );
}

/** Decompression of the same codes. */
export async function decompressCase(kernels: LoadedKernels, draw: AttendDraw, { judge }: Bench): Promise<void> {
  const g = kernels.geometry;
  const setting = attendSetting(g, draw);
  for (const [index, one] of setting.sequences.entries()) {
    const { tokens } = one.decoded.keys;
    if (tokens === 0) continue;
    const bytes = tokens * g.width * 2;
    const outputs = await runKernel(
      kernels,
      'decompress',
      { tokens },
      {
        sequence: setting.records.slice(index * recordWords, (index + 1) * recordWords),
        cache: setting.cache,
        tables: setting.tables,
        keys: { bytes },
        values: { bytes },
      },
    );
    const actual = { keys: asHalfBits(outputs.keys!), values: asHalfBits(outputs.values!) };
    checkDecompressed(g, actual, one, `sequence ${index}`, judge);
  }
}
