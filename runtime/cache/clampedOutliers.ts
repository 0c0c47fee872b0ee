import type { CacheMemory } from './memory.js';

/** Numbers of a prompt beyond the range of their code that its `outliers` step had no place for. */
export interface ClampedOutliers {
  readonly keys: number;
  readonly values: number;
}

export async function clampedOutliers(memory: CacheMemory, sequence: number): Promise<ClampedOutliers> {
  const part = memory.layout.parts.find(({ name }) => name === 'outlierCounts');
  // The counts of a prompt are written with its middle.
  if (!part || (await memory.readRecord(sequence)).middleTokens === 0) return { keys: 0, values: 0 };
  const bytes = await memory.readShare(sequence, part);
  const counts = new DataView(bytes.buffer, bytes.byteOffset, part.bytes);
  return { keys: counts.getUint32(0, true), values: counts.getUint32(4, true) };
}
