import { readFile } from 'node:fs/promises';
import { f16round, setFloat16 } from '@petamoriken/float16';
import { KvforgeError } from '../../dsl/errors.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { rotate } from '../reference/rope.js';
import { type Cache, emptyTensor, type HeadTensor, vectorAt } from '../reference/shapes.js';
import { parseSafetensors, type Safetensors, type Tensor, tensorValues } from '../safetensors.js';

/** Keys, values and the last queries of one layer of a model that has read a text. */
export interface LayerActivations {
  readonly layer: number;
  readonly tokens: number;
  /** f16 bits [KV heads][tokens][head dim], keys after RoPE. */
  readonly keyBits: Uint16Array;
  readonly valueBits: Uint16Array;
  /** f16 bits [heads][last positions][head dim], after RoPE. */
  readonly queryBits: Uint16Array;
  /** The same keys and values. */
  readonly exact: Cache;
  /** The queries before they are rounded to f16. */
  readonly queries: HeadTensor;
  /** Tokens that each of these queries sees. */
  readonly visible: readonly number[];
}

export interface Activations {
  readonly model: ModelShape;
  readonly description: string;
  readonly layers: readonly number[];
  layer(layer: number): LayerActivations;
}

/**
 * Reads activations that were recorded from a model.
 *
 * @throws KvforgeError `invalid-input` when the file is not what its metadata says
 */
export async function loadActivations(path: string): Promise<Activations> {
  const bytes = await readFile(path).catch((cause: Error) => {
    throw invalid(path, 'recorded activations', 'no such file', cause);
  });
  const file = parseSafetensors(bytes);
  const config = file.metadata.get('config');
  if (config === undefined) throw invalid(path, 'a model configuration in the metadata', 'none');
  const model = modelFrom(JSON.parse(config), 'smollm2-135m');
  const names = [...file.tensors.keys()].map((name) => /^layers\.(\d+)\.k$/.exec(name)?.[1]);
  const layers = names.flatMap((name) => (name === undefined ? [] : [Number(name)])).sort((a, b) => a - b);
  return {
    model,
    description: file.metadata.get('model') ?? model.name,
    layers,
    layer: (layer) => readLayer(file, model, layer),
  };
}

function readLayer(file: Safetensors, model: ModelShape, layer: number): LayerActivations {
  const tensor = (name: 'k' | 'q' | 'v', heads: number): Tensor => {
    const found = file.tensors.get(`layers.${layer}.${name}`);
    const [first, , last] = found?.shape ?? [];
    if (found === undefined || found.dtype !== 'F16' || first !== heads || last !== model.headDim) {
      const received = found === undefined ? 'none' : `${found.dtype} [${found.shape.join(', ')}]`;
      throw invalid(`layers.${layer}.${name}`, `F16 [${heads}, tokens, ${model.headDim}]`, received);
    }
    return found;
  };
  const [keys, values, queries] = [tensor('k', model.kvHeads), tensor('v', model.kvHeads), tensor('q', model.heads)];
  const tokens = keys.shape[1]!;
  const count = queries.shape[1]!;
  const positions = Array.from({ length: count }, (_, index) => tokens - count + index);
  const turned = rotated(headTensor(queries), positions, model);
  return {
    layer,
    tokens,
    keyBits: bitsOf(keys),
    valueBits: bitsOf(values),
    queryBits: halfBitsOf(turned),
    exact: { keys: headTensor(keys), values: headTensor(values) },
    queries: turned,
    visible: positions.map((position) => position + 1),
  };
}

function headTensor(tensor: Tensor): HeadTensor {
  const [heads, tokens, channels] = tensor.shape as [number, number, number];
  return { heads, tokens, channels, data: tensorValues(tensor) };
}

/** A copy, since the bytes may lie in the file at an odd address. */
function bitsOf({ bytes }: Tensor): Uint16Array {
  return new Uint16Array(Uint8Array.from(bytes).buffer);
}

function rotated(plain: HeadTensor, positions: readonly number[], model: ModelShape): HeadTensor {
  const turned = emptyTensor(plain.heads, plain.tokens, plain.channels);
  for (let head = 0; head < plain.heads; head++) {
    for (const [index, position] of positions.entries()) {
      vectorAt(turned, head, index).set(rotate(vectorAt(plain, head, index), position, model.rope));
    }
  }
  return turned;
}

/** The last query of every head as a kernel takes it: [heads][head dim], rounded to f16; bits and numbers. */
export function lastQuery(queries: HeadTensor): { readonly bits: Uint16Array; readonly rows: HeadTensor } {
  const rows = emptyTensor(queries.heads, 1, queries.channels);
  for (let head = 0; head < queries.heads; head++) {
    vectorAt(rows, head, 0).set(vectorAt(queries, head, queries.tokens - 1).map((x) => f16round(x)));
  }
  return { bits: halfBitsOf(rows), rows };
}

/** Rounded to f16. */
function halfBitsOf({ data }: HeadTensor): Uint16Array {
  const view = new DataView(new ArrayBuffer(data.length * 2));
  data.forEach((value, index) => {
    setFloat16(view, index * 2, value, true);
  });
  return new Uint16Array(view.buffer);
}

function invalid(at: string, expected: string, received: string, cause?: Error): KvforgeError {
  const hint = 'Install kvforge again; the recorded activations are part of the package.';
  return new KvforgeError('invalid-input', { at, expected, received, hint }, { cause });
}
