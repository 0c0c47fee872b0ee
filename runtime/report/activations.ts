import { readFile } from 'node:fs/promises';
import { f16round, setFloat16 } from '@petamoriken/float16';
import { KvforgeError } from '../../dsl/errors.js';
import { frequenciesFor, layerShape, type ModelShape, modelFrom } from '../../dsl/model.js';
import { type Rotation, rotate } from '../reference/rope.js';
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
 * Reads activations that were recorded from a model: for each layer N `layers.N.k` and `.v`, F16 [KV heads][tokens][head
 * dim], keys after RoPE at positions from 0 on, and `layers.N.q`, F16 [heads][positions][head dim], queries of the last
 * positions before RoPE.
 *
 * @param expected the model that they must be of; left out, it is what the `config` of the file's metadata says, as in
 * the file that comes with kvforge
 * @throws KvforgeError `invalid-input` when the file is not what its metadata says, or of another model
 */
export async function loadActivations(path: string, expected?: ModelShape): Promise<Activations> {
  const hint =
    expected === undefined
      ? 'Install kvforge again; the recorded activations are part of the package.'
      : 'docs/compare.md says what a file of activations holds.';
  const refuse: Refuse = (at, wanted, received, cause) => {
    throw new KvforgeError('invalid-input', { at, expected: wanted, received, hint }, { cause });
  };
  const bytes = await readFile(path).catch((cause: NodeJS.ErrnoException) => {
    const received = cause.code === 'ENOENT' ? 'no such file' : (cause.code ?? cause.message);
    return refuse(path, 'recorded activations', received, cause);
  });
  const file = parseSafetensors(bytes);
  const recorded = configuredModel(file.metadata.get('config'), `${path}, metadata, config`, refuse);
  if (expected !== undefined && recorded !== undefined) checkSame(expected, recorded, path, refuse);
  const model = expected ?? recorded ?? refuse(path, 'a model configuration in the metadata', 'none');
  const names = [...file.tensors.keys()].map((name) => /^layers\.(\d+)\.k$/.exec(name)?.[1]);
  const layers = names.flatMap((name) => (name === undefined ? [] : [Number(name)])).sort((a, b) => a - b);
  if (layers.length === 0) refuse(path, 'a tensor layers.N.k for each layer N', 'none');
  return {
    model,
    description: file.metadata.get('model') ?? model.name,
    layers,
    layer: (layer) => readLayer(file, model, layer, refuse),
  };
}

type Refuse = (at: string, expected: string, received: string, cause?: Error) => never;

function configuredModel(config: string | undefined, at: string, refuse: Refuse): ModelShape | undefined {
  if (config === undefined) return undefined;
  let parsed: unknown;
  try {
    parsed = JSON.parse(config);
  } catch (cause) {
    return refuse(at, 'JSON', (cause as Error).message, cause as Error);
  }
  return modelFrom(parsed, 'smollm2-135m');
}

/** What tells models apart whose caches differ; their names are not in a configuration. */
const compared = ['layers', 'heads', 'kvHeads', 'headDim', 'scoreScale', 'scoreCap', 'kinds', 'layerKinds'] as const;

/** The first field in which caches of two models differ, if they do. */
export function differingField(a: ModelShape, b: ModelShape): (typeof compared)[number] | undefined {
  return compared.find((field) => JSON.stringify(a[field]) !== JSON.stringify(b[field]));
}

function checkSame(expected: ModelShape, recorded: ModelShape, path: string, refuse: Refuse): void {
  const field = differingField(expected, recorded);
  if (field === undefined) return;
  const [wanted, received] = [expected[field], recorded[field]];
  const other = typeof wanted === 'number' && typeof received === 'number';
  const how = other ? `${field} ${received} instead of ${wanted}` : `other ${field}`;
  refuse(path, `activations of ${expected.name}`, `those of a model with ${how}`);
}

function readLayer(file: Safetensors, model: ModelShape, layer: number, refuse: Refuse): LayerActivations {
  const tensor = (name: 'k' | 'q' | 'v', heads: number, rows = 'tokens'): Tensor => {
    const found = file.tensors.get(`layers.${layer}.${name}`);
    const [first, count, last] = found?.shape ?? [];
    const fits = count !== undefined && count > 0 && (rows === 'tokens' || rows === String(count));
    if (found?.dtype === 'F16' && found.shape.length === 3 && first === heads && fits && last === model.headDim) {
      return found;
    }
    const received = found === undefined ? 'none' : `${found.dtype} [${found.shape.join(', ')}]`;
    return refuse(`layers.${layer}.${name}`, `F16 [${heads}, ${rows}, ${model.headDim}]`, received);
  };
  const keys = tensor('k', model.kvHeads);
  const tokens = keys.shape[1]!;
  const values = tensor('v', model.kvHeads, String(tokens));
  const queries = tensor('q', model.heads);
  const count = queries.shape[1]!;
  if (count > tokens) {
    refuse(`layers.${layer}.q`, `queries of at most ${tokens} positions, the tokens of the layer`, String(count));
  }
  const positions = Array.from({ length: count }, (_, index) => tokens - count + index);
  const { rope } = layerShape(model, layer);
  const turned = rotated(headTensor(queries), positions, {
    invFreq: frequenciesFor(rope, tokens),
    pairing: rope.pairing,
  });
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

function rotated(plain: HeadTensor, positions: readonly number[], rope: Rotation): HeadTensor {
  const turned = emptyTensor(plain.heads, plain.tokens, plain.channels);
  for (let head = 0; head < plain.heads; head++) {
    for (const [index, position] of positions.entries()) {
      vectorAt(turned, head, index).set(rotate(vectorAt(plain, head, index), position, rope));
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
