/** What examples may name without saying where it comes from. */

import { geometryOf } from '../../dsl/geometry.js';
import { shard } from '../../dsl/index.js';
import type { KernelText } from '../../runtime/device.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import type { Cache, HeadTensor } from '../../runtime/reference/shapes.js';
import type { ShardOptions } from '../../runtime/reference/shardEncode.js';
import { halves, model } from '../runtime/cacheCase.js';

export { readFile, writeFile } from 'node:fs/promises';
export { check } from './check.js';
export { model };

/** Where a program runs that is none: the folder has a `config.json`, a `cache.safetensors` and a `my-codec.ts`. */
export const config = {
  model_type: 'llama',
  hidden_size: 2048,
  num_hidden_layers: 16,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 8192,
  rope_theta: 500000,
};

export const geometry = geometryOf(shard, model);

/** A prompt of 256 tokens, the query of the next token, and that token. */
const { kvHeads, heads, headDim } = geometry;
export const keys = halves(kvHeads * 256 * headDim, 1);
export const values = halves(kvHeads * 256 * headDim, 2);
export const query = halves(heads * headDim, 3);
export const newKeys = halves(kvHeads * headDim, 4);
export const newValues = halves(kvHeads * headDim, 5);

function normal(rows: number, tokens: number, seed: number): HeadTensor {
  const random = seededRandom(seed);
  const data = Float64Array.from({ length: rows * tokens * headDim }, () => normalFrom(random));
  return { heads: rows, tokens, channels: headDim, data };
}

/** A cache of the reference, queries on it, and what encodes it. */
export const exact: Cache = { keys: normal(kvHeads, 48, 6), values: normal(kvHeads, 48, 7) };
export const queries = normal(heads, 2, 8);
export const options: ShardOptions = {
  rank: 16,
  bits: [8],
  group: 16,
  channels: 4,
  entries: 256,
  iterations: 2,
  seed: 1,
  sinks: 4,
  window: 8,
};

function doublingFor(target: 'cuda' | 'wgsl', source: string): KernelText {
  const word = { element: 'u32', holds: '[4]' } as const;
  return {
    source,
    descriptor: {
      stage: 'example',
      entry: 'double_words',
      file: `double_words.${target === 'cuda' ? 'cu' : 'wgsl'}`,
      target,
      bindings: [
        { name: 'input', access: 'read', ...word },
        { name: 'output', access: 'read_write', ...word },
      ],
      threads: 4,
      grid: [1, 1, 1],
      sharedBytes: { fixed: 0, dynamic: 0 },
      requires: [],
      tunables: {},
    },
  };
}

/** A kernel of both languages: output = 2 * input. */
export const doubling = {
  cuda: doublingFor(
    'cuda',
    `#include "prelude.cuh"
extern "C" __global__ void double_words(const unsigned int *__restrict__ input, unsigned int *__restrict__ output) {
  output[threadIdx.x] = 2u * input[threadIdx.x];
}
`,
  ),
  wgsl: doublingFor(
    'wgsl',
    `@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(4)
fn double_words(@builtin(local_invocation_id) thread: vec3u) {
  output[thread.x] = 2u * input[thread.x];
}
`,
  ),
};
