import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import { pairsOf, type ScalarCodes, type ScalarMiddle, type ScalarOutliers, toHalf } from '../reference/index.js';
import { blockRows, codingOf } from '../reference/unpackScalar.js';
import type { SequenceDraw } from './attendDraws.js';
import { codecValues } from './codeValues.js';
import type { Drawing } from './drawParts.js';
import { largestOf } from './draws.js';

/** A middle of random codes, drawn with the call of the result. */
export function drawScalarMiddle(
  g: ScalarGeometry,
  { sinks, middle, reach, magnitude }: SequenceDraw,
  drawing: Drawing,
): () => ScalarMiddle {
  const { random, normal } = drawing;
  // From a thousandth to eight: where they differ that much few channels decide, and in every other draw all have a say.
  const [least, most] = random() < 0.5 ? [-10, 3] : [-1, 1];
  const keyScale = () => (random() < 0.1 ? 0 : magnitude * 2 ** (least! + (most! - least!) * random()));
  // Were the token of nearly all weight zero, the output would be the others', whose weights f16 does not hold.
  const valueScale = () => (reach <= 1 && random() < 0.1 ? 0 : Math.exp(normal()));
  // A mean of all tokens moves their scores together: what is left between large ones, float32 does not hold to the bar.
  const mean = (size: number) => (reach <= 1 ? size * normal() : 0);
  return () => ({
    tokens: middle,
    firstPosition: sinks,
    keys: drawCodes(g, g.keys, middle, { ...drawing, scale: keyScale, mean: () => mean(magnitude) }),
    values: drawCodes(g, g.values, middle, { ...drawing, scale: valueScale, mean: () => mean(1) }),
    ...(g.keys.outlierCap + g.values.outlierCap > 0
      ? { clamped: { keys: drawing.below(2 ** 16), values: drawing.below(2 ** 16) } }
      : {}),
  });
}

/** How blocks are drawn: a scale is the largest magnitude of their numbers, beside the mean. */
interface BlockDrawing extends Drawing {
  readonly scale: () => number;
  readonly mean: () => number;
}

function drawCodes(
  g: ScalarGeometry,
  groups: ScalarGroups,
  tokens: number,
  { random, normal, below, scale, mean }: BlockDrawing,
): ScalarCodes {
  const { codec, bits, levelChannels, outlierCap, projection } = groups;
  const values = codecValues(codec, levelChannels);
  const largest = largestOf(values);
  const coding = codingOf(groups);
  const count = (blockRows(coding.block, tokens) * g.width) / coding.block.channels;
  // After RoPE's pairs became radii and angles a scale is one channel's.
  const angles = groups.polar ? new Set(pairsOf(g.model.rope, g.headDim).map(([, second]) => second)) : undefined;
  const isAngle = (channel: number) => angles?.has(channel % g.headDim) ?? false;
  // No angle lies beyond the circle, nor does what stands for one: of more turns float32 keeps less.
  const firstAngles = Float64Array.from({ length: angles ? count : 0 }, () => toHalf(2 * random() - 1));
  const angleScale = (at: number) => {
    if (random() < 0.1) return 0;
    return codec.device.offset ? (1 - firstAngles[at]!) * random() : random();
  };
  const scales = Float64Array.from({ length: count }, (_, at) =>
    toHalf((isAngle(at) ? angleScale(at) : scale()) / largest),
  );
  const offsetOf = (size: number, at: number) => {
    if (isAngle(at)) return firstAngles[at]!;
    if (angles) return toHalf(Math.abs(mean()));
    // With an offset values are all of one sign; taken off, their numbers have both.
    return toHalf(mean() - size * largest * (0.25 + random() / 2));
  };
  return {
    ...coding,
    codes: Uint8Array.from({ length: tokens * g.width }, () => below(2 ** bits)),
    scales,
    ...(codec.device.offset ? { offsets: scales.map(offsetOf) } : {}),
    values,
    ...(projection.length > 0
      ? {
          residuals: {
            projection,
            signs: Uint8Array.from({ length: tokens * g.width }, () => below(2)),
            norms: Float64Array.from({ length: tokens * g.kvHeads }, () => toHalf(scale())),
          },
        }
      : {}),
    ...(outlierCap > 0
      ? { outliers: drawOutliers(g, outlierCap, tokens, { random, below, normal, scale, isAngle }) }
      : {}),
  };
}

/** None, a few and as many as there may be; at either end of a head more often, and two of one channel, which add up. */
function drawOutliers(
  g: ScalarGeometry,
  cap: number,
  tokens: number,
  {
    random,
    below,
    normal,
    scale,
    isAngle,
  }: Pick<BlockDrawing, 'random' | 'below' | 'normal' | 'scale'> & { readonly isAngle: (channel: number) => boolean },
): ScalarOutliers {
  const channels = new Uint16Array(tokens * g.kvHeads * cap);
  const residuals = new Float64Array(channels.length);
  for (let first = 0; first < channels.length; first += cap) {
    const count = below(cap + 1);
    const size = 2 * scale();
    for (let i = first; i < first + count; i++) {
      const ends = [0, g.headDim - 1, channels[first]!];
      channels[i] = random() < 0.3 ? ends[below(ends.length)]! : below(g.headDim);
      residuals[i] = toHalf((isAngle(channels[i]!) ? 1 : size) * normal());
    }
  }
  return { cap, channels, residuals };
}
