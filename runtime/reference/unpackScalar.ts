import type { PartName } from '../../codegen/plan/layout.js';
import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import type { ScalarBlock, ScalarCodes, ScalarMiddle } from './scalar.js';
import type { ShareReader } from './shareReader.js';

/** What the codes of a scheme stand for, over their scales; by code. */
export interface MiddleValues {
  readonly keys: ArrayLike<number>;
  readonly values: ArrayLike<number>;
}

/** How a scheme codes keys, or values, in the terms of the reference. */
export function codingOf({
  turned,
  unrotated,
  scaleTokens,
  scaleChannels,
}: ScalarGroups): Pick<ScalarCodes, 'form' | 'block'> {
  return {
    form: turned ? 'turned' : unrotated ? 'unrotated' : 'cached',
    block: { tokens: scaleTokens === 0 ? 'prompt' : scaleTokens, channels: scaleChannels },
  };
}

/** Blocks of tokens that a middle has. */
export function blockRows({ tokens: side }: ScalarBlock, tokens: number): number {
  return side === 'prompt' ? Math.min(tokens, 1) : Math.ceil(tokens / side);
}

/** The middle of a sequence whose channels are coded one by one, bit by bit. */
export function unpackScalarMiddle(
  g: ScalarGeometry,
  reader: ShareReader,
  { sinkTokens, middleTokens }: SequenceLengths,
  values: MiddleValues,
): ScalarMiddle {
  const codesOf = (
    groups: ScalarGroups,
    [codes, scales, offsets]: readonly [PartName, PartName, PartName],
    stands: ArrayLike<number>,
  ): ScalarCodes => {
    const { bits, headWords, scaleRowWords } = groups;
    const coding = codingOf(groups);
    const rows = blockRows(coding.block, middleTokens);
    const row = { count: g.width / coding.block.channels, words: scaleRowWords };
    const vectors = { count: g.headDim, words: headWords, bits };
    return {
      ...coding,
      codes: reader.fieldRows(codes, middleTokens * g.kvHeads, vectors),
      scales: reader.halfRows(scales, rows, row),
      ...(groups.codec.device.offset ? { offsets: reader.halfRows(offsets, rows, row) } : {}),
      values: Float64Array.from(stands),
    };
  };
  return {
    tokens: middleTokens,
    firstPosition: sinkTokens,
    keys: codesOf(g.keys, ['keyCodes', 'keyScales', 'keyOffsets'], values.keys),
    values: codesOf(g.values, ['valueCodes', 'valueScales', 'valueOffsets'], values.values),
  };
}
