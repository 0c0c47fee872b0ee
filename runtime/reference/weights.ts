import { pairChannels, type Rotation } from './rope.js';
import { type HeadTensor, vectorAt } from './shapes.js';

/** Least weight, over the largest of the layer. */
const floor = 1e-3;

/**
 * The two channels of every pair of a head: the rotary pairs, then those that are not rotated, of which channel i of
 * their first half goes with channel i of their second half.
 */
export function channelPairs(rotation: Rotation, channels: number): readonly (readonly [number, number])[] {
  const rotary = rotation.invFreq.map((_, j) => pairChannels(rotation, j));
  const first = 2 * rotary.length;
  const others = (channels - first) / 2;
  return [...rotary, ...Array.from({ length: others }, (_, i) => [first + i, first + others + i] as const)];
}

/**
 * Weights of the channels of keys by what queries ask of them: of every pair the root mean square of the queries of the
 * KV head's group there, over the largest of the layer, but at least a thousandth. 1 everywhere for queries of zero.
 *
 * @param queries before or after RoPE, which does not change the length of a pair
 * @param factors of the KV heads' root mean squares; 1 if left out
 * @returns [kvHeads][channels], not yet rounded to float16
 */
export function queryWeights(
  queries: HeadTensor,
  kvHeads: number,
  rotation: Rotation,
  factors?: ArrayLike<number>,
): Float64Array {
  const { heads, tokens, channels } = queries;
  const group = heads / kvHeads;
  const weights = new Float64Array(kvHeads * channels);
  for (let kvHead = 0; kvHead < kvHeads; kvHead++) {
    for (const [a, b] of channelPairs(rotation, channels)) {
      let sum = 0;
      for (let head = kvHead * group; head < (kvHead + 1) * group; head++) {
        for (let token = 0; token < tokens; token++) {
          const query = vectorAt(queries, head, token);
          sum += (query[a]! ** 2 + query[b]! ** 2) / 2;
        }
      }
      const root = Math.sqrt(sum / (group * tokens)) * (factors?.[kvHead] ?? 1);
      weights[kvHead * channels + a] = root;
      weights[kvHead * channels + b] = root;
    }
  }
  const largest = weights.reduce((x, y) => Math.max(x, y), 0);
  return weights.map((root) => (largest > 0 ? Math.max(root / largest, floor) : 1));
}
