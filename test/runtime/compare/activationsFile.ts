import { writeFileSync } from 'node:fs';
import { setFloat16 } from '@petamoriken/float16';
import { packSafetensors, type Tensor } from '../../../runtime/safetensors.js';

/** A model of which the emulator compresses a prompt in a moment: 2 KV heads of 32 channels, 4 query heads. */
export const tinyConfig = {
  model_type: 'llama',
  hidden_size: 128,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 1024,
  rope_theta: 10000,
};

/** Numbers near a normal distribution, the same for the same seed. */
export function drawn(count: number, seed: number): Float64Array {
  let state = seed * 7919 + 1;
  const next = () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
  return Float64Array.from({ length: count }, () => next() + next() + next() + next() - 2);
}

export function halfTensor(shape: readonly number[], seed: number): Tensor {
  const numbers = drawn(
    shape.reduce((product, size) => product * size, 1),
    seed,
  );
  const bytes = new Uint8Array(numbers.length * 2);
  const view = new DataView(bytes.buffer);
  numbers.forEach((x, i) => {
    setFloat16(view, i * 2, x, true);
  });
  return { dtype: 'F16', shape, bytes };
}

/** Tensors of one layer of the tiny model. */
export function tinyLayer(layer: number, tokens: number, queries: number): [string, Tensor][] {
  return [
    [`layers.${layer}.k`, halfTensor([2, tokens, 32], layer * 3 + 1)],
    [`layers.${layer}.v`, halfTensor([2, tokens, 32], layer * 3 + 2)],
    [`layers.${layer}.q`, halfTensor([4, queries, 32], layer * 3 + 3)],
  ];
}

/** @returns the path */
export function writeActivations(
  path: string,
  tensors: readonly (readonly [string, Tensor])[],
  metadata: Readonly<Record<string, string>> = { config: JSON.stringify(tinyConfig), model: 'a tiny model' },
): string {
  writeFileSync(path, packSafetensors(new Map(tensors), metadata));
  return path;
}
