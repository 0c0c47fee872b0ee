import type { Geometry } from '../dsl/geometry.js';
import { partialWords } from '../dsl/stages/attendPlan.js';
import { latentPartialWords } from '../dsl/stages/latentAttend.js';

/** What a scheme's attention takes at a time, and gives. */
export interface AttendShape {
  /** Work items of a query row and split: a KV head each, or where all heads share one, a block of query heads. */
  readonly kvHeads: number;
  /** Numbers of a query head's output: those of a value. */
  readonly outputDim: number;
  /** Numbers of one partial result. */
  readonly partialWords: number;
}

/**
 * What the attention of a geometry takes and gives.
 *
 * @example
 * attendShape(geometryOf(latentInt8, presetModel('deepseek-v3'))).outputDim; // 512
 */
export function attendShape(g: Geometry): AttendShape {
  if (g.family !== 'latent') return { kvHeads: g.kvHeads, outputDim: g.headDim, partialWords: partialWords(g) };
  return { kvHeads: g.heads / g.headsPerBlock, outputDim: g.latentDim, partialWords: latentPartialWords(g) };
}
