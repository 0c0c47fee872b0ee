// basis_start: A seeded start of the iteration, uniform in [-1, 1).
// Stage basis of scheme shard for gemma-2-9b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 384, bits 4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

const WIDTH = 2048u;  // KV_HEADS * HEAD_DIM
const RANK = 384u;  // components of a key
const THREADS = 256u;  // threads of a block
const SEED = 1u;  // of the random start

// [2048][384]
@group(0) @binding(0) var<storage, read_write> basis: array<f32>;

// dsl/random.ts:4 hashBits
// A hash of 32 bits with full avalanche (the PCG RXS-M-XS permutation; O'Neill 2014, section 6.3.4).
fn hash_bits(seed: u32) -> u32 {
  let state: u32 = seed * 0x2c9277b5u + 0xac564b05u;
  let word: u32 = ((state >> ((state >> 28u) + 4u)) ^ state) * 0x108ef2d9u;
  return (word >> 22u) ^ word;
}

// dsl/random.ts:12 uniformRandom
// A uniform number in [0, 1) from 24 bits of the hash of `seed` and `index`, equal on every target.
fn uniform_random(seed: u32, index: u32) -> f32 {
  return f32(hash_bits(hash_bits(seed) ^ index) >> 8u) * 5.9604645e-8;
}

// One thread an element.
@compute @workgroup_size(256)
fn basis_start(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let i = block.x * THREADS + thread;
  if (i < WIDTH * RANK) {
    basis[i] = uniform_random(SEED, i) * 2.0 - 1.0;
  }
}
