import { modelFrom } from '../../../dsl/model.js';
import { normalFrom, seededRandom } from '../../../runtime/reference/index.js';
import { packSafetensors, type Tensor } from '../../../runtime/safetensors.js';
import { halfBits } from '../../../runtime/verify/draws.js';

/** A model of three layers, as small as kernels go. */
export const config = {
  model_type: 'llama',
  hidden_size: 64,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  rope_theta: 10000,
  max_position_embeddings: 4096,
};
export const model = modelFrom(config, 'small');

export const tokens = 110;
export const queries = 3;

/** Keys of layer 0 have channels far from zero, as those of models do; of layer 2 nearly nothing is asked. */
export function recording(seed = 1): Uint8Array {
  const random = seededRandom(seed);
  const draw = (shape: readonly number[], scale: number, far = 0): Tensor => {
    const channels = shape[2]!;
    const count = shape.reduce((product, side) => product * side, 1);
    const numbers = Float64Array.from(
      { length: count },
      (_, i) => scale * normalFrom(random) + (i % channels === 3 ? far : 0),
    );
    return { dtype: 'F16', shape, bytes: new Uint8Array(halfBits(numbers).buffer) };
  };
  const tensors = [0, 1, 2].flatMap((layer): [string, Tensor][] => [
    [`layers.${layer}.k`, draw([2, tokens, 16], 1, layer === 0 ? 12 : 0)],
    [`layers.${layer}.v`, draw([2, tokens, 16], 1)],
    [`layers.${layer}.q`, draw([4, queries, 16], layer === 2 ? 0.05 : 1.5)],
  ]);
  return packSafetensors(new Map(tensors), { model: 'drawn numbers', config: JSON.stringify(config) });
}
