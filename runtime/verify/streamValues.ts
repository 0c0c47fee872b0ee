import type { Geometry } from '../../dsl/geometry.js';
import { codecValues } from './codeValues.js';

/**
 * What every code of the scheme's stream stands for.
 *
 * @returns [2^bits], a channel over the vector's scale
 */
export function streamValues(g: Geometry): Float64Array {
  return codecValues(g.scheme.stream, g.headDim);
}
