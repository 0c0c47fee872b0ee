import type { PartName } from '../../codegen/plan/layout.js';
import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import type { ResidualSigns } from './residualSigns.js';
import type { ScalarBlock, ScalarCodes, ScalarMiddle, ScalarOutliers } from './scalar.js';
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
  polar,
  scaleTokens,
  scaleChannels,
}: ScalarGroups): Pick<ScalarCodes, 'form' | 'block'> {
  return {
    form: turned ? 'turned' : unrotated ? 'unrotated' : polar ? 'polar' : 'cached',
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
    [codes, scales, offsets, outliers]: readonly [PartName, PartName, PartName, PartName],
    stands: ArrayLike<number>,
  ): ScalarCodes => {
    const { bits, headWords, scaleRowWords, outlierCap: cap, projection } = groups;
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
      ...(projection.length > 0 ? { residuals: unpackResiduals(g, reader, projection, middleTokens) } : {}),
      ...(cap > 0 ? { outliers: unpackOutliers(reader, outliers, cap, middleTokens * g.kvHeads) } : {}),
    };
  };
  const hasOutliers = g.keys.outlierCap + g.values.outlierCap > 0;
  return {
    tokens: middleTokens,
    firstPosition: sinkTokens,
    keys: codesOf(g.keys, ['keyCodes', 'keyScales', 'keyOffsets', 'keyOutliers'], values.keys),
    values: codesOf(g.values, ['valueCodes', 'valueScales', 'valueOffsets', 'valueOutliers'], values.values),
    ...(hasOutliers ? { clamped: unpackCounts(reader, middleTokens) } : {}),
  };
}

/** A bit a channel, and a float16 of each vector. */
function unpackResiduals(
  g: ScalarGeometry,
  reader: ShareReader,
  projection: readonly number[],
  tokens: number,
): ResidualSigns {
  const vectors = { count: g.headDim, words: g.headDim / 32, bits: 1 };
  return {
    projection,
    signs: reader.fieldRows('residualSigns', tokens * g.kvHeads, vectors),
    norms: reader.halfRows('residualNorms', tokens, { count: g.kvHeads, words: g.normWords }),
  };
}

/** A word each: the channel in the low half, the residual in the high one. */
function unpackOutliers(reader: ShareReader, name: PartName, cap: number, vectors: number): ScalarOutliers {
  const bytes = reader.bytes(name);
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return {
    cap,
    channels: Uint16Array.from({ length: vectors * cap }, (_, i) => words.getUint16(i * 4, true)),
    residuals: reader.halves(name, vectors * cap * 2).filter((_, i) => i % 2 === 1),
  };
}

/** Written with a middle; without one there are no outliers. */
function unpackCounts(reader: ShareReader, middleTokens: number): NonNullable<ScalarMiddle['clamped']> {
  if (middleTokens === 0) return { keys: 0, values: 0 };
  const bytes = reader.bytes('outlierCounts');
  const counts = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return { keys: counts.getUint32(0, true), values: counts.getUint32(4, true) };
}
