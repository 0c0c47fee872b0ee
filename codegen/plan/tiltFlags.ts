import type { TiltGeometry } from '../../dsl/tiltGeometry.js';

/** What templates of the tilt family ask, beside what those of scalar codes ask of values. */
export function tiltFlags(g: TiltGeometry): Readonly<Record<string, unknown>> {
  return { scalar: true, tilt: true, packed: g.packedValues, gained: g.gained, blocks: g.rangeBlock > 0, keys: {} };
}

/** How keys and values are coded, for the first lines of a kernel. */
export function tiltHeader(g: TiltGeometry): readonly string[] {
  const [, , { bits }] = g.scheme.keys;
  const { codec, scaleChannels } = g.values;
  const blocks = g.rangeBlock === 0 ? 'the prompt' : `${g.rangeBlock} positions`;
  const channels = scaleChannels === g.headDim ? 'a head' : `${scaleChannels} channels`;
  return [
    `keys:   unrope, tileRotation(${g.tile}), transformCode(${bits} bits a channel, ${g.groupComponents} components a width, steps of ${blocks}, i8 basis)`,
    `values: hadamard, perToken(${codec.name}, ${codec.bits} bits; a scale for ${channels})${g.gained ? ', gain' : ''}`,
  ];
}
