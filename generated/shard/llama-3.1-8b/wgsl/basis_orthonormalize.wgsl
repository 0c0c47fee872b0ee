// basis_orthonormalize: Gram-Schmidt, every column projected twice; a column that vanishes is replaced by a seeded one.
// Stage basis of scheme shard for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const RANK = 192u;  // components of a key
const THREADS = 256u;  // threads of a block
const SEED = 1u;  // of the random start

// [1024][192], orthonormal columns afterwards
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

// Earlier columns that are projected out at a time; every SHARES-th channel of a dot product belongs to one thread.
const CHUNK = 32u;
const SHARES = THREADS / CHUNK;
const ATTEMPTS = 4u;

var<workgroup> along: array<f32, CHUNK>;

var<workgroup> partial: array<f32, THREADS>;

// Sum of one value a thread; the number of threads alone decides the order. Every thread must call it and gets the sum.
fn block_sum(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] += partial[thread + count - pairs];
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// Largest of one value a thread. Every thread must call it and gets the result.
fn block_max(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] = max(partial[thread], partial[thread + count - pairs]);
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// Largest value that still counts: what is beyond it, infinite or not a number stands for a lost column.
const LIMIT = 3e38;

// Magnitude of an entry, decided on the bits so that no compiler may assume it finite.
fn magnitude_at(i: u32) -> f32 {
  let bits = bitcast<u32>(basis[i]) & 0x7fffffffu;
  return bitcast<f32>(min(bits, 0x7f7fffffu));
}

// Norm of a column; 0 when it is zero or not finite. The largest magnitude is taken out first, so that no square
// overflows or vanishes.
fn norm_of(column: u32, thread: u32) -> f32 {
  var largest = 0.0;
  for (var channel = thread; channel < WIDTH; channel += THREADS) {
    largest = max(largest, magnitude_at(channel * RANK + column));
  }
  largest = block_max(thread, largest);
  if (largest < 1e-37 || largest > LIMIT) {
    return 0.0;
  }
  var sum = 0.0;
  for (var channel = thread; channel < WIDTH; channel += THREADS) {
    let entry = basis[channel * RANK + column] / largest;
    sum += entry * entry;
  }
  let size = sqrt(block_sum(thread, sum));
  return select(0.0, size * largest, size < LIMIT / largest);
}

fn divide_column(column: u32, divisor: f32, thread: u32) {
  for (var channel = thread; channel < WIDTH; channel += THREADS) {
    basis[channel * RANK + column] /= divisor;
  }
}

// Makes what the block wrote to `basis` and to workgroup memory visible to all its threads.
fn finish_phase() {
  storageBarrier();
  workgroupBarrier();
}

// Takes the parts along the columns before it out of one column, CHUNK columns at a time.
fn project_out(column: u32, thread: u32) {
  let k = thread % CHUNK;
  let share = thread / CHUNK;
  for (var first = 0u; first < column; first += CHUNK) {
    // The column is up to date, and the last chunk's `along` is used up.
    finish_phase();
    let count = min(CHUNK, column - first);
    var sum = 0.0;
    if (k < count) {
      for (var channel = share; channel < WIDTH; channel += SHARES) {
        sum += basis[channel * RANK + first + k] * basis[channel * RANK + column];
      }
    }
    partial[thread] = sum;
    // Every share of the dot products is known.
    workgroupBarrier();
    if (share == 0u) {
      var dot_product = 0.0;
      for (var part = 0u; part < SHARES; part++) {
        dot_product += partial[part * CHUNK + k];
      }
      along[k] = dot_product;
    }
    // The dot products are complete.
    workgroupBarrier();
    for (var channel = thread; channel < WIDTH; channel += THREADS) {
      var out = 0.0;
      for (var i = 0u; i < count; i++) {
        out += basis[channel * RANK + first + i] * along[i];
      }
      basis[channel * RANK + column] -= out;
    }
  }
  // The column is up to date.
  finish_phase();
}

// One block. Gram-Schmidt, every column twice against all before it: the second pass removes what rounding left.
@compute @workgroup_size(256)
fn basis_orthonormalize(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  for (var column = 0u; column < RANK; column++) {
    for (var attempt = 1u; attempt <= ATTEMPTS; attempt++) {
      let before = norm_of(column, thread);
      if (before > 0.0) {
        divide_column(column, before, thread);
        project_out(column, thread);
        project_out(column, thread);
        let after = norm_of(column, thread);
        if (after > 1e-6) {
          divide_column(column, after, thread);
          break;
        }
      }
      // Zero, or within rounding of the span of the columns before. The seeds lie past those of the start.
      for (var channel = thread; channel < WIDTH; channel += THREADS) {
        let seed_index = attempt * WIDTH * RANK + channel * RANK + column;
        basis[channel * RANK + column] = uniform_random(SEED, seed_index) * 2.0 - 1.0;
      }
    }
    // The column is final before later columns are projected on it.
    finish_phase();
  }
}
