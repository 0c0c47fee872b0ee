import { frequenciesFor, layerShape, type ModelShape, modelFrom } from '../../../dsl/model.js';
import type { ArchiveInput } from '../../../runtime/archive/pack.js';
import { halfBitsOf } from '../../../runtime/archive/rows.js';
import { normalFrom, rotate, seededRandom } from '../../../runtime/reference/index.js';

export const config = {
  model_type: 'llama',
  hidden_size: 64,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  max_position_embeddings: 512,
  rope_theta: 10000,
};
export const narrow = modelFrom(config, 'narrow');

/**
 * Keys, turned to their positions, and values whose channels depend on one another: of all heads together they are
 * normal, with variances that fall by `decay` from one direction to the next.
 */
export function correlated(
  tokens: number,
  layers: readonly number[],
  { model = narrow, seed = 1, decay = 0.8 }: { model?: ModelShape; seed?: number; decay?: number } = {},
): ArchiveInput {
  const random = seededRandom(seed);
  const { width, kvHeads, headDim } = model;
  const drawn = (mixing: Float64Array, turned: boolean, layer: number) => {
    const { rope } = layerShape(model, layer);
    const rotation = { invFreq: frequenciesFor(rope, tokens), pairing: rope.pairing };
    const all = new Float64Array(tokens * width);
    for (let token = 0; token < tokens; token++) {
      const row = new Float64Array(width).fill(0.5);
      for (let direction = 0; direction < width; direction++) {
        const factor = normalFrom(random) * decay ** (direction / 2);
        for (let i = 0; i < width; i++) row[i]! += factor * mixing[direction * width + i]!;
      }
      for (let head = 0; head < kvHeads; head++) {
        const own = row.subarray(head * headDim, (head + 1) * headDim);
        all.set(turned ? rotate(own, token, rotation) : own, (head * tokens + token) * headDim);
      }
    }
    return halfBitsOf(all);
  };
  const mixing = () => Float64Array.from({ length: width * width }, () => normalFrom(random) / Math.sqrt(width));
  return {
    model,
    tokens,
    layers: layers.map((layer) => {
      const [keys, values] = [drawn(mixing(), true, layer), drawn(mixing(), false, layer)];
      return { layer, keys, values };
    }),
  };
}

export function messageOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return (error as Error).message;
  }
  return 'none';
}
