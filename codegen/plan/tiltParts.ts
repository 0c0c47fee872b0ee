import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';
import type { PartDescriptor, TableDescriptor } from './layout.js';

/** Parts of the middle: rows of codes by position, then what they share. */
export function tiltParts(g: TiltGeometry): readonly PartDescriptor[] {
  const heads = `[${g.kvHeads} KV heads][${g.headDim}]`;
  const { packedValues, values } = g;
  const scales = {
    rows: 'middle',
    dtype: 'F16',
    wordsPerRow: values.scaleRowWords,
    holds: `f16 [middle][${g.kvHeads} KV heads][${g.headDim / values.scaleChannels} of ${values.scaleChannels} channels]`,
  } as const;
  return [
    {
      name: 'tileCodes',
      rows: 'tiles',
      dtype: 'U32',
      tokensPerRow: rowPositions,
      wordsPerRow: g.rowWords,
      holds: `[rows of ${rowPositions} positions][${g.kvHeads} KV heads]: planes of key fields${packedValues ? ', 2-bit value codes, f16 norms' : ''}`,
    },
    {
      name: 'keySteps',
      ...(g.rangeBlock === 0
        ? ({ rows: 'sequence' } as const)
        : ({ rows: 'tiles', tokensPerRow: g.rangeBlock } as const)),
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 [range blocks]${heads} components, 128 times step and scale of the basis column`,
    },
    {
      name: 'keyBasis',
      rows: 'sequence',
      dtype: 'I8',
      wordsPerRow: (g.width * g.headDim) / 4,
      holds: `i8 ${heads} components[${g.headDim} channels, in the order of pairs]`,
    },
    {
      name: 'keyMean',
      rows: 'sequence',
      dtype: 'F16',
      wordsPerRow: g.width / 2,
      holds: `f16 ${heads} channels, in the order of pairs, before RoPE`,
    },
    {
      name: 'keyFields',
      rows: 'sequence',
      dtype: 'U32',
      wordsPerRow: g.kvHeads * g.fieldWords,
      holds: `u32 [${g.kvHeads} KV heads][${g.headGroups} groups, nibbles, first word]: bits + 16 * bit + 65536 * slot`,
    },
    ...(packedValues
      ? []
      : [
          {
            name: 'valueCodes',
            rows: 'middle',
            dtype: 'U32',
            wordsPerRow: g.valueRowWords,
            holds: `${values.bits}-bit fields [middle]${heads}, after Hadamard`,
          } as const,
          { name: 'valueScales', ...scales } as const,
          ...(values.codec.device.offset ? [{ name: 'valueOffsets', ...scales } as const] : []),
        ]),
    ...(g.gained
      ? [
          {
            name: 'valueGains',
            rows: 'sequence',
            dtype: 'F16',
            wordsPerRow: g.width / 2,
            holds: `f16 ${heads}, after Hadamard`,
          } as const,
        ]
      : []),
  ];
}

/** Tables of this family alone, those before the fine angles and those after them. */
export function tiltTables(g: TiltGeometry): readonly [before: readonly Own[], after: readonly Own[]] {
  return [
    [
      {
        name: 'valueLevels',
        shape: [2 ** g.values.bits],
        holds: 'values of the codes of values, over their scales',
      },
    ],
    [
      {
        name: 'tileAngles',
        shape: [g.tile, g.pairs, 2],
        holds: `(cosine, sine) of position % ${g.tile} - ${(g.tile - 1) / 2}, the place in a tile`,
      },
    ],
  ];
}

type Own = Omit<TableDescriptor, 'offset'>;
