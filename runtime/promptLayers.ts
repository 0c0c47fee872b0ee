import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import type { Prompt } from './cache/checkPrompt.js';
import type { DecodedTokens } from './cache/read.js';
import type { Safetensors, Tensor } from './safetensors.js';

/** One layer of a model's cache, as `layers.N.keys`, `layers.N.values` and `layers.N.queries` of a safetensors file. */
export interface PromptLayer {
  readonly layer: number;
  readonly tokens: number;
  /** Copies the numbers out of the file, so that a file of many layers is in memory once. */
  readonly prompt: () => Prompt;
}

const namePattern = /^layers\.(0|[1-9]\d{0,5})\.(keys|values|queries)$/;

/**
 * The layers that a safetensors file holds, in order: keys and values F16 [KV heads][tokens][head dim], keys after RoPE,
 * and for schemes that weigh by queries those of the last positions, F16 [heads][positions][head dim], after RoPE.
 *
 * @throws KvforgeError `invalid-input` for a tensor of another name, type or shape, or one that is missing
 * @example
 * promptLayers(parseSafetensors(bytes), model).map(({ layer }) => layer); // [0, 1, 2]
 */
export function promptLayers(
  { tensors }: Pick<Safetensors, 'tensors'>,
  model: Pick<ModelShape, 'name' | 'layers' | 'heads' | 'kvHeads' | 'headDim'>,
): readonly PromptLayer[] {
  const layers = new Set<number>();
  for (const name of tensors.keys()) {
    const [, layer] = namePattern.exec(name) ?? [];
    if (layer === undefined) throw invalid(name, 'layers.N.keys, layers.N.values or layers.N.queries', 'another name');
    layers.add(Number(layer));
  }
  if (layers.size === 0) throw invalid('layers.0.keys', 'the keys of a layer', 'none');
  return [...layers].sort((a, b) => a - b).map((layer) => promptLayer(tensors, model, layer));
}

function promptLayer(
  tensors: Safetensors['tensors'],
  { name: model, layers, heads, kvHeads, headDim }: Parameters<typeof promptLayers>[1],
  layer: number,
): PromptLayer {
  if (layer >= layers) throw invalid(`layers.${layer}`, `layers 0 to ${layers - 1} of ${model}`, `${layer}`);
  const tensor = (operand: string, outer: string, count: number, inner: number | string): Tensor => {
    const name = `layers.${layer}.${operand}`;
    const found = tensors.get(name);
    const [first, second, last] = found?.shape ?? [];
    const rightTokens = typeof inner === 'string' || second === inner;
    if (found?.shape.length !== 3 || found.dtype !== 'F16' || first !== count || !rightTokens || last !== headDim) {
      const received = found === undefined ? 'none' : `${found.dtype} [${found.shape.join(', ')}]`;
      throw invalid(name, `F16 [${count} ${outer}, ${inner}, ${headDim}]`, received);
    }
    return found;
  };
  const keys = tensor('keys', 'KV heads', kvHeads, 'tokens');
  const tokens = keys.shape[1]!;
  const values = tensor('values', 'KV heads', kvHeads, tokens);
  const queries = tensors.has(`layers.${layer}.queries`) ? tensor('queries', 'heads', heads, 'positions') : undefined;
  const prompt = () => ({
    keys: halfBits(keys),
    values: halfBits(values),
    tokens,
    ...(queries === undefined ? {} : { queries: halfBits(queries) }),
  });
  return { layer, tokens, prompt };
}

/**
 * Decoded tokens of a layer under the names by which `promptLayers` reads them.
 *
 * @example
 * layerTensors(0, decoded, model).get('layers.0.keys')!.shape; // [3, 256, 64]
 */
export function layerTensors(
  layer: number,
  { keys, values, tokens }: DecodedTokens,
  { kvHeads, headDim }: Pick<ModelShape, 'kvHeads' | 'headDim'>,
): ReadonlyMap<string, Tensor> {
  const tensor = ({ buffer, byteOffset, byteLength }: Uint16Array): Tensor => {
    return { dtype: 'F16', shape: [kvHeads, tokens, headDim], bytes: new Uint8Array(buffer, byteOffset, byteLength) };
  };
  return new Map([
    [`layers.${layer}.keys`, tensor(keys)],
    [`layers.${layer}.values`, tensor(values)],
  ]);
}

/** A copy, since the bytes may lie in the file at an odd address. */
const halfBits = ({ bytes }: Tensor) => new Uint16Array(Uint8Array.from(bytes).buffer);

function invalid(name: string, expected: string, received: string): KvforgeError {
  const hint = 'Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors.';
  return new KvforgeError('invalid-input', { at: `tensor ${name}`, expected, received, hint });
}
