import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { channelPairs, placeFields, type TiltMiddle, toHalf } from '../reference/index.js';
import type { SequenceDraw } from './attendDraws.js';
import { codecValues } from './codeValues.js';
import type { Drawing } from './drawParts.js';
import { largestOf } from './draws.js';

/** A middle of random codes: what its tokens share is drawn now, their codes with the call of the result. */
export function drawTiltMiddle(
  g: TiltGeometry,
  { sinks, middle, reach, magnitude }: SequenceDraw,
  { random, normal, halves, below }: Drawing,
): () => TiltMiddle {
  const { headDim: d, kvHeads, width, groupComponents: group, values } = g;
  const meanFactor = random() < 0.3 ? 0 : 1;
  const widths = drawWidths(g, below);
  const weights = drawWeights(g, random);
  const blocks = middle === 0 ? 0 : g.rangeBlock === 0 ? 1 : Math.ceil((sinks + middle) / g.rangeBlock);
  const bitsOf = (at: number) => widths[Math.floor((at % width) / group)]!;
  // As of an orthonormal basis: columns of unit length, on average, coded by int8 with a scale of about 3 / (127 sqrt(d)).
  const columnScale = 3 / 127 / Math.sqrt(d);
  const steps = Float64Array.from({ length: blocks * width }, (_, at) =>
    bitsOf(at) === 0 ? 0 : toHalf((128 * columnScale * 2 * magnitude * random() * Math.sqrt(d)) / 2 ** bitsOf(at)),
  );
  const basisCodes = Int8Array.from({ length: kvHeads * d * d }, (_, at) => {
    const code = below(255) - 127;
    // The basis is of weighted keys: of an entry as small as the least weight, rounding leaves 1 at most.
    return weights[Math.floor(at / (d * d)) * d + (at % d)]! > toHalf(leastWeight) ? code : Math.round(code / 127);
  });
  const levels = codecValues(values.codec, values.levelChannels);
  const largest = largestOf(levels);
  const valueScale = () => (reach <= 1 && random() < 0.1 ? 0 : Math.exp(normal()));
  const gains = halves(width, () => 0.5 + random());
  return () => {
    const count = (middle * width) / values.scaleChannels;
    const scales = halves(count, () => valueScale() / largest);
    return {
      tokens: middle,
      firstPosition: sinks,
      tile: g.tile,
      rangeBlock: g.rangeBlock,
      group,
      widths: middle === 0 ? widths.map(() => 0) : widths,
      keyCodes: Int32Array.from({ length: middle * width }, (_, at) => {
        const bits = bitsOf(at);
        return bits === 0 ? 0 : below(2 ** bits) - 2 ** (bits - 1);
      }),
      steps,
      basisCodes,
      mean: halves(width, () => meanFactor * magnitude * normal()),
      weights,
      tiltValues: {
        scaleChannels: values.scaleChannels,
        codes: Uint8Array.from({ length: middle * width }, () => below(2 ** values.bits)),
        scales,
        ...(values.codec.device.offset
          ? { offsets: scales.map((scale) => toHalf(-scale * largest * (0.25 + random() / 2))) }
          : {}),
        levels,
        ...(g.gained ? { gains } : {}),
      },
    };
  };
}

/** Widths as an encoder may find them, in no order, whose fields fit a row. */
function drawWidths(g: TiltGeometry, below: (limit: number) => number): number[] {
  const choices = [0, 1, 2, 3, 4, 5, 6, 8];
  let left = g.keyNibbles;
  return Array.from({ length: g.kvHeads }, (_, head) => {
    // Half of what is left goes to the next head, but for the last one.
    const most = head === g.kvHeads - 1 ? left : Math.ceil(left / 2);
    let own = Array.from({ length: g.headGroups }, () => 0);
    for (let group = 0; group < g.headGroups; group++) {
      const wider = own.with(group, choices[below(choices.length)]!);
      if (placeFields(wider).nibbles <= most) own = wider;
    }
    left -= placeFields(own).nibbles;
    return own;
  }).flat();
}

/** What an encoder gives channels that the queries do not ask for. */
const leastWeight = 1e-3;

/** Between 1/8 and 1, for some pairs the least that an encoder gives. */
function drawWeights(g: TiltGeometry, random: () => number): Float64Array {
  const weights = new Float64Array(g.width);
  const atLeast = random() < 0.5 ? 0 : 0.1;
  for (let head = 0; head < g.kvHeads; head++) {
    for (const [a, b] of channelPairs(g.model.rope, g.headDim)) {
      const weight = toHalf(random() < atLeast ? leastWeight : 2 ** (-3 * random()));
      weights[head * g.headDim + a] = weight;
      weights[head * g.headDim + b] = weight;
    }
  }
  return weights;
}
