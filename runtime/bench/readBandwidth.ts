import type { KernelDescriptor } from '../../codegen/manifest.js';
import type { Device, KernelText } from '../device.js';
import { type Timing, timingOf } from './samples.js';
import { enoughRounds } from './timed.js';

const threads = 256;
/** Vectors of 16 bytes that a thread reads, a block's width apart. */
const vectors = 8;
const bytesOfBlock = threads * vectors * 16;

/** Bytes read in one launch: far beyond a GPU's caches, and what a CPU that stands in for one reads in a moment. */
const bytesRead = { cuda: 2 ** 29, webgpu: 2 ** 22, emulator: 2 ** 20 } as const;

const cuda = `#include "prelude.cuh"

// Reads ${vectors} vectors of 16 bytes a thread. What they hold is folded into one word, and that word is stored if it has
// a value that it practically never has: without a use, the compiler would leave the reads out.
extern "C" __global__ void __launch_bounds__(${threads}) read_all(
    const u32* __restrict__ source,
    u32* found
) {
  const uint4* vectors = (const uint4*)source + blockIdx.x * ${threads * vectors} + threadIdx.x;
  u32 folded = 0;
#pragma unroll
  for (u32 i = 0; i < ${vectors}; i++) {
    const uint4 each = vectors[i * ${threads}];
    folded ^= each.x ^ each.y ^ each.z ^ each.w;
  }
  if (folded == 0x9e3779b9u) found[0] = folded;
}
`;

const wgsl = `@group(0) @binding(0) var<storage, read> source: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;

@compute @workgroup_size(${threads})
fn read_all(@builtin(workgroup_id) block: vec3u, @builtin(local_invocation_index) thread: u32) {
  let first = block.x * ${threads * vectors}u + thread;
  var folded = vec4u(0u);
  for (var i = 0u; i < ${vectors}u; i++) {
    folded ^= source[first + i * ${threads}u];
  }
  if ((folded.x ^ folded.y ^ folded.z ^ folded.w) == 0x9e3779b9u) {
    found[0] = 1u;
  }
}
`;

function readKernel(target: Device['target']): KernelText {
  const descriptor: KernelDescriptor = {
    stage: 'bench',
    entry: 'read_all',
    file: target === 'cuda' ? 'read_all.cu' : 'read_all.wgsl',
    target,
    bindings: [
      { name: 'source', access: 'read', element: 'u32', holds: 'anything' },
      { name: 'found', access: 'read_write', element: 'u32', holds: 'nothing' },
    ],
    threads,
    grid: [{ dimension: 'blocks' }, 1, 1],
    sharedBytes: { fixed: 0, dynamic: 0 },
    requires: [],
    tunables: {},
  };
  return { descriptor, source: target === 'cuda' ? cuda : wgsl };
}

export interface ReadBandwidth {
  readonly bytesPerSecond: number;
  /** Bytes of one launch. */
  readonly bytes: number;
  readonly timing: Timing;
}

/** How fast a kernel that only reads gets bytes from the device's memory: the ceiling of one that also computes. */
export async function measureReadBandwidth(device: Device, samples: number): Promise<ReadBandwidth> {
  const bytes = bytesRead[device.kind];
  const source = device.allocate('source', bytes);
  const found = device.allocate('found', 4);
  try {
    const [kernel] = await device.compile([readKernel(device.target)]);
    // Random words: memory that was never written, or holds zeros, may be read faster than data.
    const chunk = new Uint32Array(2 ** 18);
    let state = 1;
    for (let i = 0; i < chunk.length; i++) {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      chunk[i] = state;
    }
    for (let offset = 0; offset < bytes; offset += chunk.byteLength) device.write(source, chunk, offset);
    const bindings = { source: { buffer: source }, found: { buffer: found } };
    const list = [{ kernel: kernel!, grid: [bytes / bytesOfBlock, 1, 1] as const, bindings }];
    const rounds = await enoughRounds(device, [list]);
    const timing = timingOf(await device.time([list], { samples, rounds }));
    return { bytesPerSecond: (bytes / timing.us) * 1e6, bytes, timing };
  } finally {
    source.release();
    found.release();
  }
}
