import type { Geometry } from '../../dsl/geometry.js';
import { type Matrix, meanOf, type ShardMiddle, secondMomentOf, topEigenvectors } from '../reference/index.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** Widest second-moment matrix whose exact eigenvalues a case waits for. */
const widestOptimum = 256;

export interface KeyEvidence {
  readonly middle: ShardMiddle;
  /** Middle keys before RoPE, [middle][width]. */
  readonly plain: Matrix;
  /** The basis that the kernels projected on, float32 [width][rank]. */
  readonly columns: Float32Array;
}

/** Holds mean, basis, scales and codes of the middle keys to float64, each to what the kernels had before it. */
export function checkKeys(g: Geometry, evidence: KeyEvidence, judge: Judge): void {
  checkMean(g, evidence, judge);
  checkBasis(g, evidence, judge);
  checkVariance(g, evidence, judge);
  checkCoefficients(g, evidence, judge);
}

function checkMean(g: Geometry, { middle, plain }: KeyEvidence, judge: Judge): void {
  const worst = new Worst();
  for (const [channel, mean] of meanOf(plain).entries()) {
    const inHead = channel % g.headDim;
    const other = channel + (inHead < g.pairs ? g.pairs : -g.pairs);
    let largest = 0;
    for (let token = 0; token < plain.rows; token++) {
      const row = token * g.width;
      largest = Math.max(largest, Math.hypot(plain.data[row + channel]!, plain.data[row + other]!));
    }
    const exact = clampToHalf(mean);
    const allowed = halfRounding(exact) + 1e-6 * largest;
    worst.add(Math.abs(middle.mean[channel]! - exact) / allowed, () => `channel ${channel}`);
  }
  judge.check(`keyMean, over its rounding: ${worst.at}`, worst.error, 1);
}

function checkBasis(g: Geometry, { middle, columns }: KeyEvidence, judge: Judge): void {
  const { width, rank } = g;
  const skew = new Worst();
  for (let left = 0; left < rank; left++) {
    for (let right = left; right < rank; right++) {
      let dot = 0;
      for (let row = 0; row < width; row++) dot += columns[row * rank + left]! * columns[row * rank + right]!;
      skew.add(Math.abs(dot - (left === right ? 1 : 0)), () => `components ${left} and ${right}`);
    }
  }
  judge.check(`keyBasis, inner products of columns: ${skew.at}`, skew.error, 2e-5);

  const scales = new Worst();
  const codes = new Worst();
  for (let r = 0; r < rank; r++) {
    let largest = 0;
    for (let row = 0; row < width; row++) largest = Math.max(largest, Math.abs(columns[row * rank + r]!));
    const scale = middle.basisScales[r]!;
    const exact = largest / 127;
    scales.add(Math.abs(scale - exact) / (halfRounding(exact) + 1e-6 * exact), () => `component ${r}`);
    for (let row = 0; row < width; row++) {
      const quotient = scale > 0 ? Math.min(Math.max(columns[row * rank + r]! / scale, -127), 127) : 0;
      const code = middle.basisCodes[row * rank + r]!;
      codes.add(Math.abs(quotient - code), () => `channel ${row}, component ${r}`);
    }
  }
  judge.check(`keyBasisScales, over their rounding: ${scales.at}`, scales.error, 1);
  judge.check(`keyBasis, codes from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-3);
}

function checkVariance(g: Geometry, { middle, plain, columns }: KeyEvidence, judge: Judge): void {
  if (plain.rows === 0) return;
  if (g.width > widestOptimum) {
    judge.skip(`captured variance not held to the optimum: width ${g.width} is above ${widestOptimum}`);
    return;
  }
  const moment = secondMomentOf(plain, middle.mean);
  let captured = 0;
  for (let r = 0; r < g.rank; r++) {
    for (let i = 0; i < g.width; i++) {
      let sum = 0;
      for (let j = 0; j < g.width; j++) sum += moment.data[i * g.width + j]! * columns[j * g.rank + r]!;
      captured += sum * columns[i * g.rank + r]!;
    }
  }
  const best = topEigenvectors(moment, g.rank).values.reduce((sum, value) => sum + value, 0);
  if (best > 0) judge.check('keyBasis, variance that the best basis holds beyond it', 1 - captured / best, 0.01);
}

function checkCoefficients(g: Geometry, { middle, plain, columns }: KeyEvidence, judge: Judge): void {
  const { width, rank } = g;
  const exact = new Float64Array(plain.rows * rank);
  const slack = new Float64Array(plain.rows);
  for (let token = 0; token < plain.rows; token++) {
    let [ofKey, ofMean] = [0, 0];
    for (let i = 0; i < width; i++) {
      const key = plain.data[token * width + i]!;
      const centred = key - middle.mean[i]!;
      ofKey += key ** 2;
      ofMean += middle.mean[i]! ** 2;
      for (let r = 0; r < rank; r++) exact[token * rank + r]! += centred * columns[i * rank + r]!;
    }
    // Columns have length one: float32 loses a part of the whole key's length, in every component.
    slack[token] = 1e-6 * (Math.sqrt(ofKey) + Math.sqrt(ofMean));
  }
  const most = slack.reduce((a, b) => Math.max(a, b), 0);
  const scales = new Worst();
  const codes = new Worst();
  for (const { firstComponent, components, bits } of g.keyGroups) {
    const limit = 2 ** (bits - 1) - 1;
    for (let r = firstComponent; r < firstComponent + components; r++) {
      let largest = 0;
      for (let token = 0; token < plain.rows; token++) largest = Math.max(largest, Math.abs(exact[token * rank + r]!));
      const scale = middle.coefficientScales[r]!;
      const wanted = bits === 0 ? 0 : Math.min(largest / limit, 65504);
      const allowed = bits === 0 ? 1 : halfRounding(wanted) + most / limit;
      scales.add(bits === 0 ? scale : Math.abs(scale - wanted) / allowed, () => `component ${r}`);
      if (bits === 0) continue;
      for (let token = 0; token < plain.rows; token++) {
        const quotient = scale > 0 ? Math.min(Math.max(exact[token * rank + r]! / scale, -limit), limit) : 0;
        const away = Math.abs(quotient - middle.coefficientCodes[token * rank + r]!);
        codes.add(scale > 0 ? away - slack[token]! / scale : away, () => `middle token ${token}, component ${r}`);
      }
    }
  }
  judge.check(`keyScales, over their rounding: ${scales.at}`, scales.error, 1);
  judge.check(`keyCodes, from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-3);
}
