import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import {
  allocationError,
  fittingWidths,
  type Matrix,
  placeFields,
  placeInTile,
  rangeBlockOf,
  rotate,
  secondMomentOf,
  type TiltParts,
  topEigenvectors,
} from '../reference/index.js';
import { pairOrder } from '../reference/unpackTilt.js';
import { halfRounding, type Judge, Worst } from './judge.js';

export interface TiltKeyEvidence {
  /** Middle keys before RoPE, [middle][width]. */
  readonly plain: Matrix;
  /** The bases that the kernels projected on, float32 [KV heads][channels in the order of pairs][components]. */
  readonly vectors: Float32Array;
  /** The variances of their components as the kernels found them, float32 [KV heads][d]. */
  readonly eigenvalues: Float32Array;
}

/** One head's keys about the stored mean, rotated to their places and weighted, channels in the order of pairs. */
interface HeadKeys extends Matrix {
  /** What float32 may lose of the length of each. */
  readonly slack: Float64Array;
}

/**
 * Holds bases, widths, steps and codes of the keys to float64, each to what the kernels had before it.
 *
 * @returns whether the fields of the widths fit into rows
 */
export function checkTiltKeys(g: TiltGeometry, parts: TiltParts, evidence: TiltKeyEvidence, judge: Judge): boolean {
  const heads = Array.from({ length: g.kvHeads }, (_, head) => headKeys(g, parts, evidence.plain, head));
  checkBases(g, parts, evidence, heads, judge);
  const fits = checkTiltWidths(g, parts.middle.widths, evidence.eigenvalues, judge);
  checkComponents(g, parts, evidence, heads, judge);
  return fits;
}

function headKeys(g: TiltGeometry, { middle, rope }: TiltParts, plain: Matrix, head: number): HeadKeys {
  const { headDim: d } = g;
  const order = pairOrder(g);
  const data = new Float64Array(plain.rows * d);
  const slack = new Float64Array(plain.rows);
  const own = (all: Float64Array, from: number) => all.subarray(from + head * d, from + (head + 1) * d);
  const [mean, weights] = [own(middle.mean, 0), own(middle.weights, 0)];
  const length = (x: Float64Array) => Math.hypot(...x.map((y, i) => weights[i]! * y));
  for (let token = 0; token < plain.rows; token++) {
    const key = own(plain.data, token * plain.columns);
    const place = placeInTile(middle.firstPosition + token, g.tile);
    const turned = rotate(
      key.map((x, i) => x - mean[i]!),
      place,
      rope,
    );
    for (const [i, channel] of order.entries()) data[token * d + i] = weights[channel]! * turned[channel]!;
    slack[token] = 1.5e-6 * (length(key) + length(mean));
  }
  return { rows: plain.rows, columns: d, data, slack };
}

function checkBases(
  g: TiltGeometry,
  { middle }: TiltParts,
  { vectors, eigenvalues }: TiltKeyEvidence,
  heads: readonly HeadKeys[],
  judge: Judge,
): void {
  const { headDim: d } = g;
  const order = pairOrder(g);
  const [skew, codes, values] = [new Worst(), new Worst(), new Worst()];
  for (const [head, keys] of heads.entries()) {
    const entry = (channel: number, r: number) => vectors[(head * d + channel) * d + r]!;
    for (let left = 0; left < d; left++) {
      for (let right = left; right < d; right++) {
        let dot = 0;
        for (let i = 0; i < d; i++) dot += entry(i, left) * entry(i, right);
        skew.add(Math.abs(dot - (left === right ? 1 : 0)), () => `KV head ${head}, components ${left} and ${right}`);
      }
    }
    const best = topEigenvectors(secondMomentOf(keys, new Float64Array(d)), d).values;
    // float32 knows a variance to a part of the largest, and no better than the keys that it is of.
    const lost = keys.slack.reduce((a, b) => Math.max(a, b), 0);
    const allowed = 2e-5 * best[0]! + 2 * Math.sqrt(best[0]!) * lost + lost ** 2 + Number.MIN_VALUE;
    for (let r = 0; r < d; r++) {
      values.add(Math.abs(eigenvalues[head * d + r]! - best[r]!) / allowed, () => `KV head ${head}, component ${r}`);
      const scale = columnScale(d, (i) => entry(i, r));
      for (let i = 0; i < d; i++) {
        const code = middle.basisCodes[(head * d + r) * d + order[i]!]!;
        codes.add(Math.abs(entry(i, r) / scale - code), () => `KV head ${head}, channel ${i}, component ${r}`);
      }
    }
  }
  judge.check(`bases, inner products of columns: ${skew.at}`, skew.error, 2e-5);
  judge.check(`eigenvalues, from those of the second moments, over their rounding: ${values.at}`, values.error, 1);
  judge.check(`keyBasis, codes from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-3);
}

function columnScale(d: number, entry: (channel: number) => number): number {
  let largest = 0;
  for (let i = 0; i < d; i++) largest = Math.max(largest, Math.abs(entry(i)));
  return largest / 127;
}

/**
 * Holds the widths of the groups to the nibbles of a row, and their expected error to the least there is.
 *
 * @returns whether the fields fit
 */
export function checkTiltWidths(
  g: TiltGeometry,
  widths: readonly number[],
  eigenvalues: ArrayLike<number>,
  judge: Judge,
): boolean {
  const { headGroups, groupComponents } = g;
  let nibbles = 0;
  for (let first = 0; first < widths.length; first += headGroups) {
    nibbles += placeFields(widths.slice(first, first + headGroups)).nibbles;
  }
  const text = `keyFields, widths ${widths.join()}`;
  judge.check(`${text}: nibbles beyond those of a row`, Math.max(0, nibbles - g.keyNibbles), 0);
  const variances = Array.from({ length: widths.length }, (_, group) => {
    let sum = 0;
    for (let i = 0; i < groupComponents; i++) sum += Math.max(0, eigenvalues[group * groupComponents + i]!);
    return sum;
  });
  const wanted = allocationError(variances, fittingWidths(variances, headGroups, g.keyNibbles));
  const excess = allocationError(variances, widths) - wanted;
  judge.check(`${text}: error beyond the least`, wanted > 0 ? excess / wanted : excess, 1e-6);
  return nibbles <= g.keyNibbles;
}

function checkComponents(
  g: TiltGeometry,
  { middle }: TiltParts,
  { vectors }: TiltKeyEvidence,
  heads: readonly HeadKeys[],
  judge: Judge,
): void {
  const { headDim: d, kvHeads } = g;
  const { tokens, firstPosition } = middle;
  const [steps, codes] = [new Worst(), new Worst()];
  for (const [head, keys] of heads.entries()) {
    for (let r = 0; r < d; r++) {
      const bits = middle.widths[head * g.headGroups + Math.floor(r / g.groupComponents)]!;
      const scale = columnScale(d, (i) => vectors[(head * d + i) * d + r]!);
      const exact = Float64Array.from({ length: tokens }, (_, token) => {
        let sum = 0;
        for (let i = 0; i < d; i++) sum += keys.data[token * d + i]! * vectors[(head * d + i) * d + r]!;
        return sum;
      });
      const blockOf = (token: number) => rangeBlockOf(firstPosition + token, g.rangeBlock);
      for (let block = 0; block <= blockOf(tokens - 1); block++) {
        const own = [...exact.keys()].filter((token) => blockOf(token) === block);
        const where = () => `KV head ${head}, component ${r}, range block ${block}`;
        const stored = middle.steps[(block * kvHeads + head) * d + r]!;
        if (bits === 0) {
          steps.add(stored, where);
          continue;
        }
        let [largest, sum, most] = [0, 0, 0];
        for (const token of own) {
          largest = Math.max(largest, Math.abs(exact[token]!));
          sum += Math.abs(exact[token]!);
          most = Math.max(most, keys.slack[token]!);
        }
        // One bit stands for the mean magnitude.
        const step = bits === 1 ? (2 * sum) / own.length : (2 * largest) / 2 ** bits;
        const unsure = bits === 1 ? 2 * (most + 1e-6 * largest) : (2 * most) / 2 ** bits;
        const wanted = Math.min(128 * scale * step, 65504);
        const allowed = halfRounding(wanted) + 128 * scale * unsure + 1e-6 * wanted;
        steps.add(Math.abs(stored - wanted) / allowed, where);
        const taken = stored / (128 * scale);
        const half = 2 ** (bits - 1);
        for (const token of own) {
          const code = middle.keyCodes[(token * kvHeads + head) * d + r]!;
          const quotient = taken > 0 ? Math.min(Math.max(exact[token]! / taken, -half), half) : 0.5;
          const away = Math.abs(quotient - (code + 0.5));
          codes.add(taken > 0 ? away - keys.slack[token]! / taken : away, () => `middle token ${token}, ${where()}`);
        }
      }
    }
  }
  judge.check(`keySteps, over their rounding: ${steps.at}`, steps.error, 1);
  judge.check(`key codes, from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-3);
}
