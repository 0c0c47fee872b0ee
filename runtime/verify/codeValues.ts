import type { ScalarCodec } from '../../dsl/codec.js';
import type { Geometry, ScalarGroups } from '../../dsl/geometry.js';
import { levelsOf } from '../../dsl/levels.js';
import type { CodeValues } from '../reference/unpackShare.js';

/**
 * What every code of a codec stands for, by the codec's own device function in Node on the table that kernels get: so
 * any scalar codec can be judged, whatever it does with its levels.
 *
 * @param channels that the levels are asked for
 * @returns [2^bits], a number over its scale
 */
export function codecValues(codec: ScalarCodec, channels: number): Float64Array {
  const levels = levelsOf(codec, channels);
  return Float64Array.from({ length: 2 ** codec.bits }, (_, code) =>
    codec.device.value(code, (index) => levels[index]!),
  );
}

/** What all codes of a scheme stand for. */
export function codeValues(g: Geometry): CodeValues {
  const stream = codecValues(g.scheme.stream, g.headDim);
  if (g.family === 'tilt') {
    return { stream, middle: { keys: [], values: codecValues(g.values.codec, g.values.levelChannels) } };
  }
  if (g.family !== 'scalar') return { stream };
  const of = ({ codec, levelChannels }: ScalarGroups) => codecValues(codec, levelChannels);
  return { stream, middle: { keys: of(g.keys), values: of(g.values) } };
}
