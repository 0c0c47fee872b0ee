import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { modelFrom } from '../../dsl/model.js';
import { layerTensors } from '../../runtime/promptLayers.js';
import { packSafetensors, type Tensor } from '../../runtime/safetensors.js';
import { halves } from '../runtime/cacheCase.js';
import { temporaryFolder } from './support.js';

const config = {
  model_type: 'llama',
  hidden_size: 128,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 32,
  max_position_embeddings: 512,
  rope_theta: 10000,
};
export const model = modelFrom(config, 'narrow');
export const tokens = 150;

/** Layers of which activations are recorded. */
const layers = [1, 3] as const;

export function promptOf(layer: number) {
  const size = model.width * tokens;
  return { keys: halves(size, layer), values: halves(size, 10 + layer), tokens };
}

/**
 * A folder with a model's config and the activations of one text.
 *
 * @param change what is wrong with them
 */
export function calibrationFolder(change: (tensors: Map<string, Tensor>) => void = () => {}) {
  const folder = temporaryFolder();
  const tensors = new Map<string, Tensor>();
  for (const layer of layers) {
    for (const [name, tensor] of layerTensors(layer, promptOf(layer), model)) tensors.set(name, tensor);
    const bytes = new Uint8Array(halves(model.heads * 8 * model.headDim, 20 + layer).buffer);
    tensors.set(`layers.${layer}.queries`, { dtype: 'F16', shape: [model.heads, 8, model.headDim], bytes });
  }
  change(tensors);
  const [input, file] = [join(folder, 'text.safetensors'), join(folder, 'narrow.json')];
  writeFileSync(file, JSON.stringify(config));
  writeFileSync(input, packSafetensors(tensors, {}));
  return { folder, input, config: file, layers, tokens };
}
