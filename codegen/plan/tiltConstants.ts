import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';

/** Sizes that templates of the tilt family name. */
export function tiltConstants(g: TiltGeometry): readonly { name: string; value: number; comment: string }[] {
  const { values } = g;
  return [
    { name: 'TILE', value: g.tile, comment: 'positions of a tile, whose keys are rotated together' },
    { name: 'RANGE_BLOCK', value: g.rangeBlock, comment: 'positions that share the steps of components; 0 for all' },
    { name: 'GROUP_COMPONENTS', value: g.groupComponents, comment: 'components that share a width' },
    { name: 'GROUPS', value: g.headGroups, comment: 'groups of components of a KV head' },
    { name: 'FIELD_WORDS', value: g.fieldWords, comment: "words that describe the fields of a KV head's key codes" },
    { name: 'ROW_POSITIONS', value: rowPositions, comment: 'positions of a row of codes' },
    { name: 'TILE_ROW_WORDS', value: g.rowWords, comment: 'words of a row of codes, all KV heads' },
    { name: 'ROW_VALUE_WORDS', value: g.rowValueWords, comment: "words of a KV head's value codes and norms in a row" },
    { name: 'KEY_NIBBLES', value: g.keyNibbles, comment: 'nibbles of a group that a row has for all KV heads' },
    { name: 'VALUE_BITS', value: values.bits, comment: 'bits of a channel of a value' },
    { name: 'VALUE_HEAD_WORDS', value: values.headWords, comment: "words of one head's value fields" },
    { name: 'VALUE_ROW_WORDS', value: g.valueRowWords, comment: "words of one token's value fields" },
    { name: 'VALUE_SCALE_TOKENS', value: values.scaleTokens, comment: 'middle tokens that share a scale' },
    { name: 'VALUE_SCALE_CHANNELS', value: values.scaleChannels, comment: 'channels of a head that share a scale' },
    { name: 'VALUE_SCALE_ROW_WORDS', value: values.scaleRowWords, comment: 'words of a row of scales, two each' },
  ];
}
