import type { Geometry } from '../../dsl/geometry.js';

/**
 * What every code of the scheme's stream stands for, by the codec's own device function in Node on the table that
 * kernels get: so any scalar codec can be judged, whatever it does with its levels.
 *
 * @returns [2^bits], a channel over the vector's scale
 */
export function streamValues(g: Geometry): Float64Array {
  const { bits, levels, device } = g.scheme.stream;
  const table = Float32Array.from(levels(g.headDim));
  return Float64Array.from({ length: 2 ** bits }, (_, code) => device.value(code, (index) => table[index]!));
}
