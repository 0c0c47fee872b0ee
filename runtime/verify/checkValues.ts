import type { LowRankGeometry } from '../../dsl/geometry.js';
import {
  clampGain,
  type HeadTensor,
  hadamard,
  type Matrix,
  nearestCentroid,
  type ShardMiddle,
  toHalf,
  unbiasedGain,
  vectorAt,
} from '../reference/index.js';
import { largestOf } from './draws.js';
import { clampToHalf, halfRounding, halfStep, type Judge, Worst } from './judge.js';

/** Smallest channel maximum that is stored, so that it can be divided by. */
const floor = 2 ** -23;

/**
 * Holds channel maxima, codebook and codes of the middle values to float64; codes to the codebook that was stored, gains
 * to the codes.
 *
 * @param exact the prompt's values
 */
export function checkValues(g: LowRankGeometry, middle: ShardMiddle, exact: HeadTensor, judge: Judge): void {
  const tokens = middle.tokens;
  const values = new Float64Array(tokens * g.width);
  const slack = new Float64Array(tokens * g.kvHeads);
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < g.kvHeads; head++) {
      const vector = hadamard(vectorAt(exact, head, middle.firstPosition + token));
      values.set(vector, token * g.width + head * g.headDim);
      slack[token * g.kvHeads + head] = 1e-6 * Math.hypot(...vector);
    }
  }
  const turned = { values, slack };
  const { unbiased } = g.scheme.values[2];
  const maxima = unbiased ? expectedMaxima(g, tokens, turned) : storedMaxima(g, middle, turned, judge);
  checkCodes(g, middle, turned, maxima, judge);
  if (unbiased) checkGains(g, middle, turned, maxima, judge);
}

interface Turned {
  /** [middle][width], after the Hadamard transform. */
  readonly values: Float64Array;
  /** What float32 may lose of each (token, head), [middle][KV heads]. */
  readonly slack: Float64Array;
}

/** What the codes of a channel were chosen with. */
interface Maxima {
  readonly scales: Float64Array;
  /** How far a scale may be another one, over itself; zero but near a tie of rounding to f16. */
  readonly doubts: Float64Array;
}

function rangeOf(g: LowRankGeometry, tokens: number, { values, slack }: Turned, channel: number) {
  const head = Math.floor(channel / g.headDim);
  let [largest, unsure] = [floor, 0];
  for (let token = 0; token < tokens; token++) {
    largest = Math.max(largest, Math.abs(values[token * g.width + channel]!));
    unsure = Math.max(unsure, slack[token * g.kvHeads + head]!);
  }
  return { largest, unsure };
}

/** The maxima that were stored, held to the values. */
function storedMaxima(g: LowRankGeometry, middle: ShardMiddle, turned: Turned, judge: Judge): Maxima {
  const worst = new Worst();
  for (let channel = 0; channel < g.width; channel++) {
    const { largest, unsure } = rangeOf(g, middle.tokens, turned, channel);
    const wanted = clampToHalf(largest);
    const stored = middle.channelMax[channel]!;
    const error = stored > 0 ? Math.abs(stored - wanted) / (halfRounding(wanted) + unsure) : Number.POSITIVE_INFINITY;
    worst.add(error, () => `KV head ${Math.floor(channel / g.headDim)}, channel ${channel % g.headDim}`);
  }
  judge.check(`channelMax, over its rounding: ${worst.at}`, worst.error, 1);
  return { scales: middle.channelMax, doubts: new Float64Array(g.width) };
}

/** The maxima as they must have been before the gains were folded in. */
function expectedMaxima(g: LowRankGeometry, tokens: number, turned: Turned): Maxima {
  const [scales, doubts] = [new Float64Array(g.width), new Float64Array(g.width)];
  for (let channel = 0; channel < g.width; channel++) {
    const { largest, unsure } = rangeOf(g, tokens, turned, channel);
    const scale = toHalf(largest);
    const [low, high] = [toHalf(Math.max(largest - unsure, floor)), toHalf(largest + unsure)];
    // Devices may round subnormal halves as they like.
    const step = scale < 2 ** -14 ? halfStep(scale) : 0;
    scales[channel] = scale;
    doubts[channel] = Math.max(high - scale, scale - low, step) / scale;
  }
  return { scales, doubts };
}

function checkCodes(
  g: LowRankGeometry,
  middle: ShardMiddle,
  { values, slack }: Turned,
  { scales, doubts }: Maxima,
  judge: Judge,
): void {
  const { channels, entries } = g;
  const points: Matrix = {
    rows: values.length / channels,
    columns: channels,
    data: values.map((x, i) => x / scales[i % g.width]!),
  };
  // Entries are means of points, which lie in the unit cube, but for channels that f16 cannot hold and its rounding.
  const largest = Math.max(1, largestOf(points.data));
  const widest = 1 + doubts.reduce((a, b) => Math.max(a, b), 0);
  judge.check('codebook, beyond the largest point', largestOf(middle.codebook) / largest / widest, 1 + 2 ** -10);
  const codebook: Matrix = { rows: entries, columns: channels, data: middle.codebook };
  const vectors = g.width / channels;
  const worst = new Worst();
  for (let row = 0; row < points.rows; row++) {
    const code = middle.valueCodes[row]!;
    const { distance } = nearestCentroid(points, row, codebook);
    const vector = row % vectors;
    let [taken, scale, doubt] = [0, Number.POSITIVE_INFINITY, 0];
    for (let k = 0; k < channels; k++) {
      const at = vector * channels + k;
      const point = points.data[row * channels + k]!;
      taken += (point - (middle.codebook[code * channels + k] ?? Number.NaN)) ** 2;
      scale = Math.min(scale, scales[at]!);
      doubt = Math.max(doubt, doubts[at]! * Math.abs(point));
    }
    const token = Math.floor(row / vectors);
    const head = Math.floor((vector * channels) / g.headDim);
    const unsure = (slack[token * g.kvHeads + head]! / scale + doubt) * Math.sqrt(channels) + 1e-6;
    const excess = (Math.sqrt(taken) - 2 * unsure) / Math.max(Math.sqrt(distance), 1e-30) - 1;
    worst.add(excess, () => `middle token ${token}, KV head ${head}, vector ${vector % (g.headDim / channels)}`);
  }
  // 1e-4 of the squared distance.
  judge.check(`valueCodes, distance beyond the nearest entry's: ${worst.at}`, worst.error, 5e-5);
}

/** Stored maxima are those of the codes times what makes the coded values unbiased, within what float32 leaves open. */
function checkGains(
  g: LowRankGeometry,
  middle: ShardMiddle,
  turned: Turned,
  { scales, doubts }: Maxima,
  judge: Judge,
): void {
  const worst = new Worst();
  for (let channel = 0; channel < g.width; channel++) {
    const scale = scales[channel]!;
    const { squares, products, unsure } = momentsOf(g, middle, turned, { channel, scale, doubt: doubts[channel]! });
    const gain = (up: -1 | 1) =>
      clampGain((squares + up * unsure.squares) / Math.max(products - up * unsure.products, 0));
    // Where rounding decides the sign of the products, there may be no gain at all.
    const [low, high] = [gain(-1), gain(1)].map((x, i) => (products > unsure.products ? x : i === 0 ? 0.25 : 4));
    const wanted = Math.max(floor, clampToHalf(scale * unbiasedGain(squares, products)));
    const [least, most] = [scale * (1 - doubts[channel]!) * low!, scale * (1 + doubts[channel]!) * high!];
    const allowed = halfRounding(wanted) + Math.max(0, wanted - least, clampToHalf(most) - wanted);
    const stored = middle.channelMax[channel]!;
    const error = stored > 0 ? Math.abs(stored - wanted) / allowed : Number.POSITIVE_INFINITY;
    worst.add(error, () => `KV head ${Math.floor(channel / g.headDim)}, channel ${channel % g.headDim}`);
  }
  judge.check(`channelMax with its gain, over its rounding: ${worst.at}`, worst.error, 1);
}

/** Sums over the middle of y * y and of y * coded y, and what float32 may have of them otherwise. */
function momentsOf(
  g: LowRankGeometry,
  { tokens, valueCodes, codebook }: ShardMiddle,
  { values, slack }: Turned,
  { channel, scale, doubt }: { readonly channel: number; readonly scale: number; readonly doubt: number },
) {
  const head = Math.floor(channel / g.headDim);
  const moments = { squares: 0, products: 0, unsure: { squares: 0, products: 0 } };
  for (let token = 0; token < tokens; token++) {
    const value = values[token * g.width + channel]!;
    const code = valueCodes[Math.floor((token * g.width + channel) / g.channels)]!;
    const coded = scale * codebook[code * g.channels + (channel % g.channels)]!;
    const lost = slack[token * g.kvHeads + head]!;
    moments.squares += value * value;
    moments.products += value * coded;
    moments.unsure.squares += (2 * Math.abs(value) + lost) * lost + 1e-6 * value * value;
    moments.unsure.products += (lost + (1e-6 + doubt) * Math.abs(value)) * Math.abs(coded);
  }
  return moments;
}
