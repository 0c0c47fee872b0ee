import type { ScalarCodes, ScalarMiddle, ScalarOutliers, ScalarParts } from '../reference/scalar.js';
import type { SequenceParts } from '../reference/segments.js';
import { type CodedSequence, isScalarParts, isTiltParts } from '../reference/sequence.js';
import { type HeadTensor, headRows } from '../reference/shapes.js';
import type { ShardMiddle, ShardParts } from '../reference/shard.js';
import type { TiltMiddle, TiltParts } from '../reference/tilt.js';

/**
 * The parts of one KV head alone, as those of a cache that has no other: decoding all heads of a long sequence in
 * float64 takes minutes, and one head shows an error of the arithmetic as well.
 */
export function partsOfHead(parts: ShardParts, head: number): ShardParts;
export function partsOfHead(parts: ScalarParts, head: number): ScalarParts;
export function partsOfHead(parts: TiltParts, head: number): TiltParts;
export function partsOfHead(parts: CodedSequence, head: number): CodedSequence {
  if (isTiltParts(parts)) return { ...segmentsOfHead(parts, head), middle: tiltMiddle(parts, head) };
  return isScalarParts(parts)
    ? { ...segmentsOfHead(parts, head), middle: scalarMiddle(parts, head) }
    : { ...segmentsOfHead(parts, head), middle: shardMiddle(parts, head) };
}

/** `size` numbers of one head from every row of [rows][kvHeads][size]. */
function ofHead<Numbers extends Float64Array | Int32Array | Uint16Array | Uint8Array>(
  all: Numbers,
  { kvHeads, head, size }: { readonly kvHeads: number; readonly head: number; readonly size: number },
): Numbers {
  const rows = all.length / kvHeads / size;
  const own = all.slice(0, rows * size) as Numbers;
  for (let row = 0; row < rows; row++) {
    const from = (row * kvHeads + head) * size;
    own.set(all.subarray(from, from + size), row * size);
  }
  return own;
}

function segmentsOfHead(
  { headDim, kvHeads, rope, sinks, stream, window }: CodedSequence,
  head: number,
): Omit<SequenceParts<unknown>, 'middle'> {
  const tensor = (all: HeadTensor): HeadTensor => ({ ...all, heads: 1, data: headRows(all, head).data });
  const segment = ({ keys, values }: typeof sinks) => ({ keys: tensor(keys), values: tensor(values) });
  const codes = { kvHeads, head, size: headDim };
  const norms = { kvHeads, head, size: 1 };
  return {
    headDim,
    rope,
    kvHeads: 1,
    sinks: segment(sinks),
    window: segment(window),
    stream: {
      ...stream,
      keyCodes: ofHead(stream.keyCodes, codes),
      valueCodes: ofHead(stream.valueCodes, codes),
      keyNorms: ofHead(stream.keyNorms, norms),
      valueNorms: ofHead(stream.valueNorms, norms),
    },
  };
}

function shardMiddle({ headDim: d, kvHeads, middle }: ShardParts, head: number): ShardMiddle {
  const channels = (all: Float64Array) => all.slice(head * d, (head + 1) * d);
  return {
    ...middle,
    basisCodes: middle.basisCodes.slice(head * d * middle.rank, (head + 1) * d * middle.rank),
    mean: channels(middle.mean),
    weights: channels(middle.weights),
    valueCodes: ofHead(middle.valueCodes, { kvHeads, head, size: d / middle.channels }),
    channelMax: channels(middle.channelMax),
  };
}

function tiltMiddle({ headDim: d, kvHeads, middle }: TiltParts, head: number): TiltMiddle {
  const { tiltValues: values, widths, group } = middle;
  const channels = (all: Float64Array) => all.slice(head * d, (head + 1) * d);
  const vectors = { kvHeads, head, size: d };
  const blocks = { kvHeads, head, size: d / values.scaleChannels };
  return {
    ...middle,
    widths: widths.slice((head * d) / group, ((head + 1) * d) / group),
    keyCodes: ofHead(middle.keyCodes, vectors),
    steps: ofHead(middle.steps, vectors),
    basisCodes: middle.basisCodes.slice(head * d * d, (head + 1) * d * d),
    mean: channels(middle.mean),
    weights: channels(middle.weights),
    tiltValues: {
      ...values,
      codes: ofHead(values.codes, vectors),
      scales: ofHead(values.scales, blocks),
      ...(values.offsets ? { offsets: ofHead(values.offsets, blocks) } : {}),
      ...(values.gains ? { gains: channels(values.gains) } : {}),
    },
  };
}

function outliersOfHead(all: ScalarOutliers, own: Parameters<typeof ofHead>[1]): ScalarOutliers {
  return { ...all, channels: ofHead(all.channels, own), residuals: ofHead(all.residuals, own) };
}

function scalarMiddle({ headDim, kvHeads, middle }: ScalarParts, head: number): ScalarMiddle {
  const own = (all: ScalarCodes): ScalarCodes => {
    const blocks = { kvHeads, head, size: headDim / all.block.channels };
    return {
      ...all,
      codes: ofHead(all.codes, { kvHeads, head, size: headDim }),
      scales: ofHead(all.scales, blocks),
      ...(all.offsets ? { offsets: ofHead(all.offsets, blocks) } : {}),
      ...(all.residuals
        ? {
            residuals: {
              ...all.residuals,
              signs: ofHead(all.residuals.signs, { kvHeads, head, size: headDim }),
              norms: ofHead(all.residuals.norms, { kvHeads, head, size: 1 }),
            },
          }
        : {}),
      ...(all.outliers ? { outliers: outliersOfHead(all.outliers, { kvHeads, head, size: all.outliers.cap }) } : {}),
    };
  };
  return { ...middle, keys: own(middle.keys), values: own(middle.values) };
}
