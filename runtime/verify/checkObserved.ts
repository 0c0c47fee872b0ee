import type { LowRankGeometry } from '../../dsl/geometry.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import {
  type Cache,
  type HeadTensor,
  lastQueries,
  observe,
  observedScores,
  observedWeights,
  type ScoreRule,
  vectorAt,
} from '../reference/index.js';
import { type Judge, Worst } from './judge.js';

/** What the prompt's queries made of it, as the kernels found. */
export interface ObservedEvidence {
  /** Of the prompt, all that were given. */
  readonly queries: HeadTensor;
  /** Of the middle. */
  readonly tokenWeights: Float32Array;
  /** Of the KV heads. */
  readonly headFactors: Float32Array;
}

/** The prompt, and where its middle lies. */
export interface ObservedPrompt extends Cache {
  readonly firstToken: number;
  readonly middle: number;
  readonly rule: ScoreRule;
}

/** Least weight of a token: a quarter of the mean, over a mean that this raises by a quarter at most. */
const leastTokenWeight = 0.25 / 1.25;

/**
 * Holds the weights of tokens and the factors of KV heads to float64, to what float32 leaves open: of scores it knows a
 * part of the sums that they are of, and of a value's distance to an output no more than of the values.
 */
export function checkObserved(g: LowRankGeometry, prompt: ObservedPrompt, found: ObservedEvidence, judge: Judge): void {
  const { keys, values, firstToken, middle, rule } = prompt;
  if (middle === 0) return;
  checkForm(found, judge);
  const queries = lastQueries(found.queries, observedQueries);
  const sums = observe({ keys, values, queries }, rule, firstToken, middle);
  const exact = observedWeights(sums);

  const magnitudes = (tensor: HeadTensor) => ({ ...tensor, data: tensor.data.map(Math.abs) });
  const sizes = observedScores({ keys: magnitudes(keys), queries: magnitudes(queries) }, { scale: rule.scale }).data;
  const unsure = 1e-5 + 5e-6 * sizes.reduce((a, b) => Math.max(a, b), 0);
  let longest = 0;
  for (let head = 0; head < values.heads; head++) {
    for (let token = 0; token < values.tokens; token++) {
      longest = Math.max(longest, Math.hypot(...vectorAt(values, head, token)));
    }
  }
  /** Of the root of a sensitivity, from the root and the mass that goes with it; squares below 1e-38 are lost. */
  const open = (root: number, mass: number) => unsure * (root + mass * longest) + 1e-17 * longest;

  const roots = new Float64Array(middle);
  const lost = new Float64Array(middle);
  const heads = { roots: new Float64Array(g.kvHeads), lost: new Float64Array(g.kvHeads) };
  for (let token = 0; token < middle; token++) {
    for (let head = 0; head < g.kvHeads; head++) {
      const sensitivity = sums.sensitivities[token * g.kvHeads + head]!;
      const away = open(Math.sqrt(sensitivity), sums.masses[token * g.kvHeads + head]!);
      roots[token]! += sensitivity;
      lost[token]! += away;
      heads.roots[head]! += sensitivity;
      heads.lost[head]! += away;
    }
    roots[token] = Math.sqrt(roots[token]!);
  }
  const mean = average(roots);
  // What says nothing to one may say something to the other.
  if (mean < 1e-16 || average(lost) < 0.1 * mean) {
    const raised = exact.tokens.map((weight, token) => {
      const ratio = mean < 1e-16 ? 0 : (lost[token]! + (roots[token]! / mean) * average(lost)) / mean;
      return ratio + 1e-5 * weight;
    });
    const worst = new Worst();
    for (const [token, weight] of exact.tokens.entries()) {
      const allowed = 1.2 * (raised[token]! + weight * average(raised));
      worst.add(Math.abs(found.tokenWeights[token]! - weight) / allowed, () => `middle token ${token}`);
    }
    judge.check(`token weights, over what float32 leaves open: ${worst.at}`, worst.error, 1);
  } else judge.skip('token weights not held to float64: float32 leaves a tenth of their mean open');

  const largest = Math.sqrt(heads.roots.reduce((a, b) => Math.max(a, b), 0));
  const most = heads.lost.reduce((a, b) => Math.max(a, b), 0);
  if (largest < 1e-16 || most < 0.1 * largest) {
    const factors = new Worst();
    for (const [head, factor] of exact.heads.entries()) {
      const allowed = (largest < 1e-16 ? 0 : (1.2 * (heads.lost[head]! + factor * most)) / largest) + 1e-5;
      factors.add(Math.abs(found.headFactors[head]! - factor) / allowed, () => `KV head ${head}`);
    }
    judge.check(`head factors, over what float32 leaves open: ${factors.at}`, factors.error, 1);
  } else judge.skip('head factors not held to float64: float32 leaves a tenth of the largest open');
}

/** What holds of weights and factors whatever the prompt is, and however little float32 knows of its scores. */
function checkForm({ tokenWeights, headFactors }: ObservedEvidence, judge: Judge): void {
  const below = new Worst();
  for (const [token, weight] of tokenWeights.entries()) below.add(leastTokenWeight - weight, () => `${token}`);
  judge.check(`token weights, below the least there can be: middle token ${below.at}`, below.error, 1e-5);
  judge.check('token weights, their mean from 1', Math.abs(average(tokenWeights) - 1), 1e-4);
  const largest = headFactors.reduce((a, b) => Math.max(a, b), 0);
  judge.check('head factors, the largest from 1', Math.abs(largest - 1), 1e-6);
  const least = headFactors.reduce((a, b) => Math.min(a, b), 0);
  judge.check('head factors, below 0', -least, 0);
}

const average = (numbers: ArrayLike<number>) => Array.from(numbers).reduce((sum, x) => sum + x, 0) / numbers.length;
