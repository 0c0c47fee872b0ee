import type { PartName } from '../../codegen/plan/layout.js';
import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { ScalarCodes, ScalarMiddle } from '../reference/index.js';
import { fieldRows, halfRows, type PackedPart } from './packedPart.js';

/** The middle of a sequence whose channels are coded one by one: the inverse of `unpackScalarMiddle`. */
export function* packScalarMiddle(g: ScalarGeometry, { keys, values }: ScalarMiddle): Generator<PackedPart> {
  yield* packed(g, g.keys, keys, ['keyCodes', 'keyScales', 'keyOffsets']);
  yield* packed(g, g.values, values, ['valueCodes', 'valueScales', 'valueOffsets']);
}

function* packed(
  g: ScalarGeometry,
  { bits, headWords, scaleChannels, scaleRowWords }: ScalarGroups,
  { codes, scales, offsets }: ScalarCodes,
  names: readonly [PartName, PartName, PartName],
): Generator<PackedPart> {
  const row = { count: g.width / scaleChannels, words: scaleRowWords };
  yield [names[0], fieldRows(codes, { count: g.headDim, words: headWords, bits })];
  yield [names[1], halfRows(scales, row)];
  if (offsets) yield [names[2], halfRows(offsets, row)];
}
