import type { BindingDescriptor, KernelDescriptor } from '../../../codegen/manifest.js';
import type { KernelText } from '../../../runtime/device.js';

/** Small kernels, each in both targets, that the conformance suite of devices runs. */
export interface ConformanceKernels {
  /** `output[i] = input[i] * 3 + 1` for `i` below `params[0]`: applied twice, the order shows in the result. */
  readonly affine: KernelText;
  /** Block (x, y, z) writes `x + 10 y + 100 z` to its place in row-major order. */
  readonly blockIds: KernelText;
  /** Eight buffers: `output[i]` is the sum of `(k + 1) * in_k[i]` over seven inputs. */
  readonly eightBuffers: KernelText;
  /** Two entries of one text: `pair_one` writes 1 to `output[0]`, `pair_two` 2 to `output[1]`; neither uses `unused`. */
  readonly pair: readonly [KernelText, KernelText];
  /** Writes 1 to `first[0]` and 2 to `second[0]`. */
  readonly twoWriters: KernelText;
  /** `output[0] = output[0] * 3 + 1`. */
  readonly grow: KernelText;
  /** A text that no compiler takes, and the line that is to blame. */
  readonly broken: { readonly text: KernelText; readonly line: number };
  /** CUDA alone: the sum of the first `input[0]` whole numbers, through that many words of dynamic shared memory. */
  readonly dynamic: ((words: number) => KernelText) | undefined;
  /** Each block of 64 threads sums 64 words of `input` through shared memory into `output[block]`. */
  readonly reduce: KernelText;
}

const SHARED_WORDS = 64;
const INPUTS = [0, 1, 2, 3, 4, 5, 6].map((k) => `in${k}`);

const word = (name: string, access: BindingDescriptor['access'] = 'read'): BindingDescriptor => ({
  name,
  access,
  element: 'u32',
  holds: 'words',
});

function describeKernel(
  target: 'cuda' | 'wgsl',
  entry: string,
  bindings: readonly BindingDescriptor[],
  threads: number,
  shared = 0,
): KernelDescriptor {
  return {
    stage: 'conformance',
    entry,
    file: `${entry}.${target === 'cuda' ? 'cu' : 'wgsl'}`,
    target,
    bindings,
    threads,
    grid: [1, 1, 1],
    sharedBytes: { fixed: shared, dynamic: 0 },
    requires: [],
    tunables: {},
  };
}

interface Bodies {
  readonly affine: string;
  readonly blockIds: string;
  readonly eightBuffers: string;
  readonly reduce: string;
  readonly twoWriters: string;
  readonly grow: string;
  readonly broken: string;
}

function cudaSource(entry: string, bindings: readonly BindingDescriptor[], body: string): string {
  const parameters = bindings.map(
    ({ name, access }) => `${access === 'read' ? 'const ' : ''}unsigned int *__restrict__ ${name}`,
  );
  return `#include "prelude.cuh"\nextern "C" __global__ void ${entry}(${parameters.join(', ')}) {\n${body}\n}\n`;
}

const cuda: Bodies = {
  affine: `  const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < params[0]) output[i] = input[i] * 3u + 1u;`,
  blockIds: `  if (threadIdx.x == 0u) {
    const unsigned int place = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    output[place] = blockIdx.x + 10u * blockIdx.y + 100u * blockIdx.z;
  }`,
  eightBuffers: `  const unsigned int i = threadIdx.x;
  output[i] = ${INPUTS.map((name, k) => `${k + 1}u * ${name}[i]`).join(' + ')};`,
  reduce: `  __shared__ unsigned int partial[${SHARED_WORDS}];
  const unsigned int t = threadIdx.x;
  partial[t] = input[blockIdx.x * ${SHARED_WORDS}u + t];
  __syncthreads();
  for (unsigned int half = ${SHARED_WORDS / 2}u; half > 0u; half /= 2u) {
    if (t < half) partial[t] += partial[t + half];
    __syncthreads();
  }
  if (t == 0u) output[blockIdx.x] = partial[0];`,
  twoWriters: `  if (threadIdx.x == 0u) {
    first[0] = 1u;
    second[0] = 2u;
  }`,
  grow: '  if (threadIdx.x == 0u) output[0] = output[0] * 3u + 1u;',
  broken: '  output[0] = 1u;\n  output[1] = nothing_of_this_name;',
};

function wgslSource(entry: string, bindings: readonly BindingDescriptor[], body: string, threads: number): string {
  const lines = bindings.map(
    ({ name, access }, i) => `@group(0) @binding(${i}) var<storage, ${access}> ${name}: array<u32>;`,
  );
  return `${lines.join('\n')}
var<workgroup> partial: array<u32, ${SHARED_WORDS}>;
@compute @workgroup_size(${threads})
fn ${entry}(
  @builtin(local_invocation_index) t: u32,
  @builtin(workgroup_id) block: vec3u,
  @builtin(num_workgroups) grid: vec3u,
) {
${body}
}
`;
}

const wgsl: Bodies = {
  affine: `  let i = block.x * 64u + t;
  if (i < params[0]) { output[i] = input[i] * 3u + 1u; }`,
  blockIds: `  if (t == 0u) {
    output[(block.z * grid.y + block.y) * grid.x + block.x] = block.x + 10u * block.y + 100u * block.z;
  }`,
  eightBuffers: `  output[t] = ${INPUTS.map((name, k) => `${k + 1}u * ${name}[t]`).join(' + ')};`,
  reduce: `  partial[t] = input[block.x * ${SHARED_WORDS}u + t];
  workgroupBarrier();
  for (var half = ${SHARED_WORDS / 2}u; half > 0u; half /= 2u) {
    if (t < half) { partial[t] += partial[t + half]; }
    workgroupBarrier();
  }
  if (t == 0u) { output[block.x] = partial[0]; }`,
  twoWriters: '  if (t == 0u) {\n    first[0] = 1u;\n    second[0] = 2u;\n  }',
  grow: '  if (t == 0u) { output[0] = output[0] * 3u + 1u; }',
  broken: '  output[0] = 1u;\n  output[1] = nothing_of_this_name;',
};

const dynamicBody = `  extern __shared__ __align__(16) unsigned char shared_memory[];
  unsigned int* const words = reinterpret_cast<unsigned int*>(shared_memory);
  const unsigned int t = threadIdx.x;
  for (unsigned int i = t; i < input[0]; i += 64u) words[i] = i;
  __syncthreads();
  if (t == 0u) {
    unsigned int sum = 0u;
    for (unsigned int i = 0u; i < input[0]; i++) sum += words[i];
    output[0] = sum;
  }`;

function pairOf(target: 'cuda' | 'wgsl'): readonly [KernelText, KernelText] {
  const bindings = [word('output', 'read_write'), word('unused')];
  const bodies = [
    { entry: 'pair_one', body: '  output[0] = 1u;' },
    { entry: 'pair_two', body: '  output[1] = 2u;' },
  ];
  const source =
    target === 'cuda'
      ? bodies.map(({ entry, body }) => cudaSource(entry, bindings, body)).join('')
      : `@group(0) @binding(0) var<storage, read_write> output: array<u32>;
@group(0) @binding(1) var<storage, read> unused: array<u32>;
${bodies.map(({ entry, body }) => `@compute @workgroup_size(1) fn ${entry}() {\n${body}\n}`).join('\n')}
`;
  const text = (entry: string): KernelText => ({
    descriptor: { ...describeKernel(target, entry, bindings, 1), file: `pair.${target === 'cuda' ? 'cu' : 'wgsl'}` },
    source,
  });
  return [text('pair_one'), text('pair_two')];
}

export function conformanceKernels(target: 'cuda' | 'wgsl'): ConformanceKernels {
  const bodies = target === 'cuda' ? cuda : wgsl;
  const make = (entry: keyof Bodies, bindings: readonly BindingDescriptor[], threads: number, shared = 0) => ({
    descriptor: describeKernel(target, entry, bindings, threads, shared),
    source:
      target === 'cuda'
        ? cudaSource(entry, bindings, bodies[entry])
        : wgslSource(entry, bindings, bodies[entry], threads),
  });
  const output = word('output', 'read_write');
  const broken = make('broken', [output], 32);
  return {
    affine: make('affine', [word('params'), word('input'), output], 64),
    blockIds: make('blockIds', [output], 32),
    eightBuffers: make('eightBuffers', [...INPUTS.map((name) => word(name)), output], 32),
    reduce: make('reduce', [word('input'), output], SHARED_WORDS, SHARED_WORDS * 4),
    pair: pairOf(target),
    twoWriters: make('twoWriters', [word('first', 'read_write'), word('second', 'read_write')], 32),
    grow: make('grow', [output], 32),
    broken: { text: broken, line: 1 + broken.source.split('\n').findIndex((line) => line.includes('nothing_of')) },
    dynamic:
      target === 'cuda'
        ? (words) => ({
            descriptor: {
              ...describeKernel(target, 'dynamic', [word('input'), output], 64),
              sharedBytes: { fixed: 0, dynamic: words * 4 },
            },
            source: cudaSource('dynamic', [word('input'), output], dynamicBody),
          })
        : undefined,
  };
}
