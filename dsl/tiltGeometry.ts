import { vectorNorm } from './codecs/lloydMax.js';
import type { CacheGeometry, ScalarGroups } from './geometry.js';
import type { ModelShape } from './model.js';
import type { TiltScheme } from './scheme.js';

/** Sizes of a scheme with tile-rotated transform coded keys. */
export interface TiltGeometry extends CacheGeometry {
  readonly family: 'tilt';
  readonly scheme: TiltScheme;
  readonly values: ScalarGroups;
  /** Outputs of the middle are multiplied by a gain a (head, channel). */
  readonly gained: boolean;
  /** Positions of a tile; one range block is a whole number of them. */
  readonly tile: number;
  /** Positions that share the steps of the components; 0 for all. */
  readonly rangeBlock: number;
  /** Components that share a width. */
  readonly groupComponents: number;
  /** Groups of components of a KV head. */
  readonly headGroups: number;
  /** Nibbles of a group position that a row has for all KV heads together. */
  readonly keyNibbles: number;
  /** Values of 2 bits with a norm lie in the rows of the keys; others in parts of their own. */
  readonly packedValues: boolean;
  /** Words of a KV head's value codes and norms in a row; 0 where they lie elsewhere. */
  readonly rowValueWords: number;
  /** Words of a row, all KV heads. */
  readonly rowWords: number;
  /** Words that describe the fields of one KV head. */
  readonly fieldWords: number;
}

/** Positions of a row of codes. */
export const rowPositions = 64;

/**
 * Components that share a width: as many as leave 8 groups of a head, or fewer, as all widths of a head are tried; a tensor
 * core takes 16 at a time.
 */
const componentsOf = (headDim: number) => (headDim > 128 ? 32 : headDim > 64 ? 16 : 8);

type Refuse = (at: string, expected: string, received: string | number, hint: string) => never;

/**
 * The family's own sizes.
 *
 * @throws KvforgeError `invalid-scheme` for heads whose codes fill no lanes
 */
export function tiltSizes(
  scheme: TiltScheme,
  { headDim, kvHeads }: ModelShape,
  values: ScalarGroups,
  refuse: Refuse,
): Omit<TiltGeometry, Exclude<keyof CacheGeometry, 'scheme' | 'weighted' | 'keyRowWords' | 'valueRowWords'>> {
  if (headDim % 32 !== 0) {
    refuse('model.headDim', 'a multiple of 32', headDim, 'Codes of a row lie as the lanes of a warp take them.');
  }
  const [, { tile }, { bits, rangeBlock }] = scheme.keys;
  const groupComponents = componentsOf(headDim);
  const headGroups = headDim / groupComponents;
  const keyNibbles = Math.ceil((bits * kvHeads * headGroups) / 4);
  const { codec, scaleChannels } = values;
  const isNorm = codec.device.scale === vectorNorm && codec.device.offset === undefined;
  const packedValues = codec.bits === 2 && isNorm && scaleChannels === headDim;
  if (scheme.values.length === 3 && !packedValues) {
    const expected = 'no gain but after values of 2 bits with a norm a token';
    const hint = 'Leave gain() out: such a code is not biased, or hardly.';
    refuse('values[2]', expected, `${codec.name} of ${codec.bits} bits`, hint);
  }
  const rowValueWords = packedValues ? 4 * headDim + rowPositions / 2 : 0;
  const rowWords = keyNibbles * 8 * groupComponents + kvHeads * rowValueWords;
  return {
    family: 'tilt',
    scheme,
    values,
    gained: scheme.values.length === 3,
    tile,
    rangeBlock,
    groupComponents,
    headGroups,
    keyNibbles,
    packedValues,
    rowValueWords,
    rowWords,
    fieldWords: headGroups + 2,
    keyRowWords: (keyNibbles * groupComponents) / 8,
    valueRowWords: packedValues ? Math.ceil((kvHeads * rowValueWords) / rowPositions) : kvHeads * values.headWords,
    weighted: true,
  };
}
