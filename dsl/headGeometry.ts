import { KvforgeError } from './errors.js';
import { checkHeads, checkScores, type Geometry } from './geometry.js';
import type { ModelShape } from './model.js';

/** The sizes of a model's heads, which attention over an uncompressed cache depends on and nothing else. */
export type HeadGeometry = Pick<Geometry, 'model' | 'headDim' | 'heads' | 'kvHeads' | 'groupSize' | 'width'>;

/**
 * The sizes of a model's heads.
 *
 * @throws KvforgeError `does-not-fit` for a head dimension without a schedule, numbers of heads that contradict one
 * another, or a score that float32 does not hold
 * @example
 * headGeometryOf(presetModel('llama-3.1-8b')).groupSize; // 4
 */
export function headGeometryOf(model: ModelShape): HeadGeometry {
  const refuse = (at: string, expected: string, received: string | number, hint: string): never => {
    throw new KvforgeError('does-not-fit', { at, expected, received: String(received), hint });
  };
  const { headDim, heads, kvHeads, groupSize, width } = model;
  checkHeads(model, refuse);
  checkScores(model, refuse);
  return { model, headDim, heads, kvHeads, groupSize, width };
}
