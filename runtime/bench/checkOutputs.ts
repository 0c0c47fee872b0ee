import type { HeadGeometry } from '../../dsl/headGeometry.js';
import type { Device, DeviceBuffer, Launch } from '../device.js';
import type { Cache } from '../reference/index.js';
import { halfValues, worstError } from '../verify/draws.js';
import { attendVisible } from '../verify/visible.js';

export interface Outputs {
  /** f32 [sequences][heads][head dim] */
  readonly output: Float32Array;
  /** f16 bits [sequences][heads][head dim], after RoPE. */
  readonly query: Uint16Array;
  readonly kvHead: number;
  /** What sequence and KV head hold, as a cache of that head alone. */
  readonly held: Cache;
  readonly sequences: readonly number[];
  readonly slidingWindow: number;
}

/** The worst error of the outputs of one KV head's query heads, in the given sequences, against float64. */
export function worstOfHead(g: HeadGeometry, outputs: Outputs): number {
  const { output, query, kvHead, held, sequences, slidingWindow } = outputs;
  const { headDim: d, groupSize } = g;
  let worst = 0;
  for (const sequence of sequences) {
    for (let head = kvHead * groupSize; head < (kvHead + 1) * groupSize; head++) {
      const at = (sequence * g.heads + head) * d;
      const q = halfValues(query.subarray(at, at + d));
      const expected = attendVisible(g, held, { query: q, kvHead: 0, after: 0, slidingWindow });
      worst = Math.max(worst, worstError(output.subarray(at, at + d), expected, d).by);
    }
  }
  return worst;
}

/**
 * Runs launches and reads their output, which holds NaN before: fresh memory may hold the right output of an earlier run.
 *
 * @param output f32
 */
export async function runPoisoned(
  device: Device,
  launches: readonly Launch[],
  output: DeviceBuffer,
): Promise<Float32Array> {
  device.write(output, new Float32Array(output.bytes / 4).fill(Number.NaN));
  await device.run(launches);
  const bytes = await device.read(output);
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}

/** First and last of a batch. */
export function endsOf(batch: number): readonly number[] {
  return batch === 1 ? [0] : [0, batch - 1];
}

/** What was compared, for people. */
export function sampledRows(
  g: Pick<HeadGeometry, 'groupSize' | 'headDim'>,
  kvHead: number,
  sequences: readonly number[],
): string {
  const which = sequences.length === 1 ? 'sequence 0' : `sequences ${sequences.join(' and ')}`;
  return `${g.groupSize * sequences.length * g.headDim} outputs: query heads of KV head ${kvHead}, ${which}`;
}
