import { frequenciesFor, type ModelShape } from './model.js';

/**
 * Positions that share one turned query: a tile begins at a multiple of this.
 *
 * @see splitRope
 */
export const splitTile = 128;

/** Functions of the position in a tile that stand for the rotation of all slow pairs: two even, two odd about its centre. */
export const splitFunctions = 4;

/** Largest error that the functions may leave in a cosine or sine of a slow pair; 1 is the length of a rotation. */
export const splitError = 1e-4;

/** What replaces the rotation of the slow pairs within a tile. */
export interface RopeSplit {
  /** [splitTile][splitFunctions]: every function at every position of a tile, at most 1 in magnitude. */
  readonly functions: Float64Array;
  /** [pairs][splitFunctions][of the cosine, of the sine]. */
  readonly coefficients: Float64Array;
  /** Largest error over positions and pairs from `fastPairs` on. */
  readonly error: number;
}

/**
 * Splits RoPE within a tile of positions: for every pair j from `fastPairs` on,
 * `cos(frequency_j i) = sum_f coefficients[j][f][0] functions[i][f]`, the sine likewise, for i from 0 to `splitTile` - 1,
 * up to the error returned. The functions span cosines and sines, about the centre of the tile, of two frequencies: the
 * squares of these are the Chebyshev nodes between zero and the square of the largest slow frequency, as cos(x t) is
 * smooth in x^2.
 *
 * @param frequencies radians per position; pairs beyond them are not rotated
 * @param pairs pairs of channels of one head
 * @param fastPairs pairs, the first ones, that are rotated position by position
 * @example
 * const { invFreq } = presetModel('llama-3.1-8b').rope;
 * splitRope(invFreq, 64, 24).error < 1e-4; // true
 */
export function splitRope(frequencies: readonly number[], pairs: number, fastPairs: number): RopeSplit {
  const centre = (splitTile - 1) / 2;
  const slow = frequencies.slice(fastPairs, pairs);
  const fastest = Math.max(0, ...slow);
  const nodes = [1 - Math.SQRT1_2, 1 + Math.SQRT1_2].map((x) => fastest * Math.sqrt(x / 2));
  const sample = (of: (angle: number) => number, frequency: number) =>
    Float64Array.from({ length: splitTile }, (_, i) => of(frequency * (i - centre)));
  const even = orthogonalPair(nodes.map((node) => sample(Math.cos, node)));
  const odd = orthogonalPair(nodes.map((node) => sample(Math.sin, node)));
  const basis = [...even, ...odd];
  const coefficients = new Float64Array(pairs * splitFunctions * 2);
  let error = 0;
  for (let pair = 0; pair < pairs; pair++) {
    const frequency = frequencies[pair] ?? 0;
    const cosines = even.map((f) => projection(sample(Math.cos, frequency), f));
    const sines = odd.map((f) => projection(sample(Math.sin, frequency), f));
    const [cos, sin] = [Math.cos(frequency * centre), Math.sin(frequency * centre)];
    const ofCosine = [...cosines.map((c) => c * cos), ...sines.map((s) => -s * sin)];
    const ofSine = [...cosines.map((c) => c * sin), ...sines.map((s) => s * cos)];
    for (let f = 0; f < splitFunctions; f++) {
      coefficients.set([ofCosine[f]!, ofSine[f]!], (pair * splitFunctions + f) * 2);
    }
    for (let i = 0; i < splitTile && pair >= fastPairs; i++) {
      const sum = (of: readonly number[]) => of.reduce((total, c, f) => total + c * basis[f]![i]!, 0);
      error = Math.max(
        error,
        Math.abs(sum(ofCosine) - Math.cos(frequency * i)),
        Math.abs(sum(ofSine) - Math.sin(frequency * i)),
      );
    }
  }
  const functions = Float64Array.from(
    { length: splitTile * splitFunctions },
    (_, k) => basis[k % splitFunctions]![Math.floor(k / splitFunctions)]!,
  );
  return { functions, coefficients, error };
}

/**
 * The pairs that a model's layers rotate position by position, at any length: the fewest, in eights, whose rest meets
 * `splitError` with the frequencies of every kind of layer.
 *
 * @example
 * fastPairsOf(presetModel('llama-3.1-8b')); // 24
 */
export function fastPairsOf(model: ModelShape): number {
  const known = fastPairs.get(model);
  if (known !== undefined) return known;
  const pairs = model.headDim / 2;
  // Scaling that depends on the length lowers frequencies as the length grows, or has one list for short and one for long.
  const lists = model.kinds.flatMap(({ rope }) => [1, 2 ** 24].map((positions) => frequenciesFor(rope, positions)));
  let fast = 0;
  while (fast < pairs && lists.some((frequencies) => splitRope(frequencies, pairs, fast).error > splitError)) fast += 8;
  fastPairs.set(model, fast);
  return fast;
}

const fastPairs = new WeakMap<ModelShape, number>();

/** Two functions made orthogonal, each at most 1 in magnitude; one that is nothing beside the other stays zero. */
function orthogonalPair([first, second]: readonly Float64Array[]): readonly Float64Array[] {
  const sum = first!.map((x, i) => x + second![i]!);
  const along = projection(first!, sum);
  return [sum, first!.map((x, i) => x - along * sum[i]!)].map((f) => {
    const largest = f.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    return largest < 1e-9 ? f.map(() => 0) : f.map((x) => x / largest);
  });
}

/** The factor of `onto` that comes nearest to a function, in the sum of squares. */
function projection(of: Float64Array, onto: Float64Array): number {
  const [dot, square] = [of, onto].map((g) => g.reduce((sum, x, i) => sum + x * onto[i]!, 0)) as [number, number];
  return square === 0 ? 0 : dot / square;
}
