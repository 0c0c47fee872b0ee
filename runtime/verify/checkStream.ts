import type { Geometry } from '../../dsl/geometry.js';
import { levelsOf } from '../../dsl/levels.js';
import { hadamard, type ShardStream } from '../reference/index.js';
import { outside, pastMidpoint } from './codeErrors.js';
import { largestOf } from './draws.js';
import { halfStep, type Judge, Worst } from './judge.js';
import { streamValues } from './streamValues.js';

/** Errors of one coded vector. */
export interface CodedErrors {
  /** What the codec's scale gave that is not finite, or below 0. */
  readonly refused: number | undefined;
  /** Of the stored scale, in steps of float16 away from what the codec may give; one step is allowed if subnormal. */
  readonly scale: { readonly error: number; readonly bar: number };
  /** Of the worst code: how far past the midpoint to a nearer level, over their distance. */
  readonly code: { readonly error: number; readonly channel: number };
}

/**
 * Holds one coded vector to the f16 numbers it came from: the scale to the codec's own function in Node, every code to
 * the level nearest to its channel, or to the codec's own where the scale could not be large enough.
 *
 * @param exact [head dim], before the Hadamard transform
 * @param values what the codes stand for, as `streamValues` gives them
 */
export function codedErrors(
  g: Pick<Geometry, 'headDim'> & { readonly scheme: Pick<Geometry['scheme'], 'stream'> },
  { codes, norm }: { readonly codes: ArrayLike<number>; readonly norm: number },
  exact: Float64Array,
  values: Float64Array,
): CodedErrors {
  const turned = hadamard(exact);
  const largest = largestOf(turned);
  const squares = turned.reduce((sum, x) => sum + (largest > 0 ? (x / largest) ** 2 : 0), 0);
  // float32 sums may fall on the other side of a tie between two halves.
  const allowed = [1 - 1e-6, 1, 1 + 1e-6].map((factor) =>
    g.scheme.stream.device.scale(squares * factor, largest * factor),
  );
  const refused = allowed.find((given) => !(given >= 0 && given < Number.POSITIVE_INFINITY));
  const [low, high] = [Math.min(...allowed), Math.max(...allowed)];
  const away = norm < low ? low - norm : norm > high ? norm - high : norm >= low ? 0 : Number.POSITIVE_INFINITY;
  let code = { error: 0, channel: -1 };
  const { stream } = g.scheme;
  const levels = levelsOf(stream, g.headDim);
  const own = (unit: number) => values[stream.device.code(unit, (index) => levels[index]!, stream.bits)]!;
  const rounding = norm > 0 ? (1e-6 * largest) / norm : 1e-7;
  for (let channel = 0; channel < turned.length; channel++) {
    const unit = norm > 0 ? turned[channel]! / norm : 0;
    const taken = values[codes[channel]!] ?? Number.NaN;
    // Beyond its scale, which float16 ends, what a number is given is the codec's own affair.
    const error =
      Math.abs(unit) > 1 + 2 ** -10
        ? outside(taken, [unit - rounding, unit, unit + rounding].map(own))
        : pastMidpoint(taken, unit, values, rounding);
    if (!(error <= code.error)) code = { error: Number.isNaN(error) ? Number.POSITIVE_INFINITY : error, channel };
  }
  return { refused, scale: { error: away / halfStep(high), bar: high < 2 ** -14 ? 1 : 0 }, code };
}

/** Tokens of a stream against those they were coded from, [kvHead][d] each, from stream token `first` on. */
export function checkStream(
  g: Geometry,
  stream: ShardStream,
  { first, keys, values }: { first: number; keys: readonly Float64Array[]; values: readonly Float64Array[] },
  { judge, where }: { judge: Judge; where: string },
): void {
  const table = streamValues(g);
  for (const [name, codesOf, normsOf, exact] of [
    ['keys', 'keyCodes', 'keyNorms', keys],
    ['values', 'valueCodes', 'valueNorms', values],
  ] as const) {
    const worst = new Worst();
    const broken = new Worst();
    for (const [index, token] of exact.entries()) {
      for (let head = 0; head < g.kvHeads; head++) {
        const vector = (first + index) * g.kvHeads + head;
        const codes = stream[codesOf].subarray(vector * g.headDim, (vector + 1) * g.headDim);
        const part = token.subarray(head * g.headDim, (head + 1) * g.headDim);
        const { refused, scale, code } = codedErrors(g, { codes, norm: stream[normsOf][vector]! }, part, table);
        const at = `${where}, stream token ${first + index}, KV head ${head}`;
        if (refused !== undefined) broken.add(Number.POSITIVE_INFINITY, () => `${refused}: ${at}`);
        judge.check(`stream ${name}: scale, in f16 steps: ${at}`, scale.error, scale.bar);
        worst.add(code.error, () => `${at}, channel ${code.channel}`);
      }
    }
    const codec = g.scheme.stream.name;
    judge.check(`stream ${name}: the scale of ${codec} is not a finite number >= 0, ${broken.at}`, broken.error, 0);
    judge.check(`stream ${name}: code past the midpoint to the nearest level: ${worst.at}`, worst.error, 1e-3);
  }
}
