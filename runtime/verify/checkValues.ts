import type { Geometry } from '../../dsl/geometry.js';
import {
  type HeadTensor,
  hadamard,
  type Matrix,
  nearestCentroid,
  type ShardMiddle,
  vectorAt,
} from '../reference/index.js';
import { largestOf } from './draws.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** Smallest channel maximum that is stored, so that it can be divided by. */
const floor = 2 ** -23;

/**
 * Holds channel maxima, codebook and codes of the middle values to float64; codes to the codebook that was stored.
 *
 * @param exact the prompt's values
 */
export function checkValues(g: Geometry, middle: ShardMiddle, exact: HeadTensor, judge: Judge): void {
  const tokens = middle.tokens;
  const turned = new Float64Array(tokens * g.width);
  /** What float32 may lose of each (token, head). */
  const slack = new Float64Array(tokens * g.kvHeads);
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < g.kvHeads; head++) {
      const vector = hadamard(vectorAt(exact, head, middle.firstPosition + token));
      turned.set(vector, token * g.width + head * g.headDim);
      slack[token * g.kvHeads + head] = 1e-6 * Math.hypot(...vector);
    }
  }
  checkMaxima(g, middle, { turned, slack }, judge);
  checkCodes(g, middle, { turned, slack }, judge);
}

interface Turned {
  /** [middle][width], after the Hadamard transform. */
  readonly turned: Float64Array;
  /** [middle][KV heads] */
  readonly slack: Float64Array;
}

function checkMaxima(g: Geometry, middle: ShardMiddle, { turned, slack }: Turned, judge: Judge): void {
  const worst = new Worst();
  for (let channel = 0; channel < g.width; channel++) {
    const head = Math.floor(channel / g.headDim);
    let [largest, unsure] = [floor, 0];
    for (let token = 0; token < middle.tokens; token++) {
      largest = Math.max(largest, Math.abs(turned[token * g.width + channel]!));
      unsure = Math.max(unsure, slack[token * g.kvHeads + head]!);
    }
    const wanted = clampToHalf(largest);
    const stored = middle.channelMax[channel]!;
    const error = stored > 0 ? Math.abs(stored - wanted) / (halfRounding(wanted) + unsure) : Number.POSITIVE_INFINITY;
    worst.add(error, () => `KV head ${head}, channel ${channel % g.headDim}`);
  }
  judge.check(`channelMax, over its rounding: ${worst.at}`, worst.error, 1);
}

function checkCodes(g: Geometry, middle: ShardMiddle, { turned, slack }: Turned, judge: Judge): void {
  const { channels, entries } = g;
  const points: Matrix = {
    rows: turned.length / channels,
    columns: channels,
    data: turned.map((x, i) => x / middle.channelMax[i % g.width]!),
  };
  // Entries are means of points, which lie in the unit cube, but for channels that f16 cannot hold and its rounding.
  const largest = Math.max(1, largestOf(points.data));
  judge.check('codebook, beyond the largest point', largestOf(middle.codebook) / largest, 1 + 2 ** -10);
  const codebook: Matrix = { rows: entries, columns: channels, data: middle.codebook };
  const vectors = g.width / channels;
  const worst = new Worst();
  for (let row = 0; row < points.rows; row++) {
    const code = middle.valueCodes[row]!;
    const { distance } = nearestCentroid(points, row, codebook);
    const vector = row % vectors;
    let [taken, scale] = [0, Number.POSITIVE_INFINITY];
    for (let k = 0; k < channels; k++) {
      taken += (points.data[row * channels + k]! - (middle.codebook[code * channels + k] ?? Number.NaN)) ** 2;
      scale = Math.min(scale, middle.channelMax[vector * channels + k]!);
    }
    const token = Math.floor(row / vectors);
    const head = Math.floor((vector * channels) / g.headDim);
    const unsure = (slack[token * g.kvHeads + head]! / scale) * Math.sqrt(channels) + 1e-6;
    const excess = (Math.sqrt(taken) - 2 * unsure) / Math.max(Math.sqrt(distance), 1e-30) - 1;
    worst.add(excess, () => `middle token ${token}, KV head ${head}, vector ${vector % (g.headDim / channels)}`);
  }
  // 1e-4 of the squared distance.
  judge.check(`valueCodes, distance beyond the nearest entry's: ${worst.at}`, worst.error, 5e-5);
}
