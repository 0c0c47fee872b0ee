import type { LowRankGeometry } from '../../dsl/geometry.js';
import {
  channelPairs,
  type Matrix,
  meanOf,
  type ShardMiddle,
  secondMomentOf,
  topEigenvectors,
} from '../reference/index.js';
import { checkCoefficients } from './checkCoefficients.js';
import { checkWeights, checkWidths } from './checkFits.js';
import type { ObservedEvidence } from './checkObserved.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** Widest second-moment matrix whose exact eigenvalues a case waits for. */
const widestOptimum = 256;

export interface KeyEvidence {
  readonly middle: ShardMiddle;
  /** Middle keys before RoPE, [middle][width]. */
  readonly plain: Matrix;
  /** What the prompt's queries made of it, where they weigh its keys. */
  readonly observed: ObservedEvidence | undefined;
  /** The basis that the kernels projected on, float32 [width][rank]. */
  readonly columns: Float32Array;
  /** Its variances, as the kernels found them, float32 [rank]. */
  readonly eigenvalues: Float32Array;
}

/** What the basis codes: keys about the mean that was stored, times the weights that were stored, [middle][width]. */
export interface CentredKeys extends Matrix {
  /** What float32 may lose of the length of each. */
  readonly slack: Float64Array;
}

/**
 * Holds weights, mean, basis, widths, scales and codes of the middle keys to float64, each to what the kernels had
 * before it.
 */
export function checkKeys(g: LowRankGeometry, evidence: KeyEvidence, judge: Judge): void {
  const { middle, plain, observed } = evidence;
  const centred = centre(middle, plain);
  if (observed) checkWeights(g, middle.weights, observed, judge);
  checkMean(g, evidence, judge);
  checkBasis(g, evidence, judge);
  checkVariance(g, evidence, observed ? weighed(centred, observed.tokenWeights) : centred, judge);
  if (middle.groupBits) checkWidths(g, middle.groupBits, evidence.eigenvalues, judge);
  checkCoefficients(g, evidence, centred, judge);
}

function centre({ mean, weights }: ShardMiddle, plain: Matrix): CentredKeys {
  const { rows, columns } = plain;
  const data = plain.data.map((x, i) => weights[i % columns]! * (x - mean[i % columns]!));
  const slack = Float64Array.from({ length: rows }, (_, token) => {
    let [ofKey, ofMean] = [0, 0];
    for (let i = 0; i < columns; i++) {
      ofKey += (weights[i]! * plain.data[token * columns + i]!) ** 2;
      ofMean += (weights[i]! * mean[i]!) ** 2;
    }
    return 1e-6 * (Math.sqrt(ofKey) + Math.sqrt(ofMean));
  });
  return { rows, columns, data, slack };
}

/** Rows times the root of the weight of their token: the second moment of these is the one that the basis is of. */
function weighed(centred: CentredKeys, weights: Float32Array): CentredKeys {
  const roots = Float64Array.from(weights, Math.sqrt);
  const data = centred.data.map((x, i) => x * roots[Math.floor(i / centred.columns)]!);
  return { ...centred, data, slack: centred.slack.map((lost, token) => lost * roots[token]!) };
}

function checkMean(g: LowRankGeometry, { middle, plain, observed }: KeyEvidence, judge: Judge): void {
  const partners = new Map(
    channelPairs(g.model.rope, g.headDim).flatMap(([a, b]) => [[a, b] as const, [b, a] as const]),
  );
  const worst = new Worst();
  for (const [channel, mean] of meanOf(plain, observed?.tokenWeights).entries()) {
    const inHead = channel % g.headDim;
    const other = channel - inHead + partners.get(inHead)!;
    let largest = 0;
    for (let token = 0; token < plain.rows; token++) {
      const row = token * g.width;
      largest = Math.max(largest, Math.hypot(plain.data[row + channel]!, plain.data[row + other]!));
    }
    const exact = clampToHalf(mean);
    const allowed = halfRounding(exact) + 2e-6 * largest;
    worst.add(Math.abs(middle.mean[channel]! - exact) / allowed, () => `channel ${channel}`);
  }
  judge.check(`keyMean, over its rounding: ${worst.at}`, worst.error, 1);
}

function checkBasis(g: LowRankGeometry, { middle, columns }: KeyEvidence, judge: Judge): void {
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

function checkVariance(
  g: LowRankGeometry,
  { columns, eigenvalues }: KeyEvidence,
  centred: CentredKeys,
  judge: Judge,
): void {
  if (centred.rows === 0) return;
  if (g.width > widestOptimum) {
    judge.skip(`captured variance not held to the optimum: width ${g.width} is above ${widestOptimum}`);
    return;
  }
  const moment = secondMomentOf(centred, new Float64Array(g.width));
  let captured = 0;
  const values = new Worst();
  const best = topEigenvectors(moment, g.rank).values;
  // float32 knows a variance to a part of the largest, and no better than the keys that it is of.
  const lost = centred.slack.reduce((a, b) => Math.max(a, b), 0);
  const allowed = 2e-5 * best[0]! + 2 * Math.sqrt(best[0]!) * lost + lost ** 2 + Number.MIN_VALUE;
  for (let r = 0; r < g.rank; r++) {
    let variance = 0;
    for (let i = 0; i < g.width; i++) {
      let sum = 0;
      for (let j = 0; j < g.width; j++) sum += moment.data[i * g.width + j]! * columns[j * g.rank + r]!;
      variance += sum * columns[i * g.rank + r]!;
    }
    captured += variance;
    values.add(Math.abs(eigenvalues[r]! - variance) / allowed, () => `component ${r}`);
  }
  judge.check(`eigenvalues, from the variance of their component, over its rounding: ${values.at}`, values.error, 1);
  const most = best.reduce((sum, value) => sum + value, 0);
  if (most > 0) judge.check('keyBasis, variance that the best basis holds beyond it', 1 - captured / most, 0.01);
}
