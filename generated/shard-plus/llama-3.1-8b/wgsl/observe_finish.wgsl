// observe_finish: Weights of tokens and values, and factors of KV heads, from the sums; one block.
// Stage observe of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const KV_HEADS = 8u;  // KV heads
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][8 KV heads]
@group(0) @binding(1) var<storage, read> sensitivities: array<f32>;
// [middle tokens][8 KV heads]
@group(0) @binding(2) var<storage, read> masses: array<f32>;
// [middle tokens], above 0, their mean 1
@group(0) @binding(3) var<storage, read_write> token_weights: array<f32>;
// [middle tokens][8 KV heads], at least 1/2
@group(0) @binding(4) var<storage, read_write> value_weights: array<f32>;
// [8 KV heads], at most 1
@group(0) @binding(5) var<storage, read_write> head_factors: array<f32>;

// dsl/codecs/observedWeights.ts:12 tokenWeight
// The weight of a token in the fit of the key basis, from the root of its sensitivity and the mean of these roots.
fn token_weight(root: f32, mean: f32) -> f32 {
  var weight: f32 = 1.0;
  if (mean > 1.0e-15) {
    weight = max(root / mean, 0.25);
  }
  return weight;
}

// dsl/codecs/observedWeights.ts:22 valueWeight
// The weight of a (token, KV head) in the fit of the value codebook: half alike for all, half by attention.
fn value_weight(mass: f32, mean: f32) -> f32 {
  var weight: f32 = 1.0;
  if (mean > 1.0e-30) {
    weight = 0.5 + 0.5 * mass / mean;
  }
  return weight;
}

// dsl/codecs/observedWeights.ts:32 headFactor
// What the weights of a KV head's channels are multiplied by: the root of its sensitivity over the largest of the layer.
fn head_factor(sensitivity: f32, largest: f32) -> f32 {
  var factor: f32 = 1.0;
  if (largest > 1.0e-30) {
    factor = sqrt(sensitivity / largest);
  }
  return factor;
}

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

// One block; every token of `token_weights` is written and read by one thread.
@compute @workgroup_size(256)
fn observe_finish(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let middle = sequence[AT_MIDDLE_TOKENS];
  let count = f32(max(middle, 1u));

  // Head by head: sums over all tokens. Thread 0 keeps the sums of sensitivities where the factors go.
  var largest = 0.0;
  for (var head = 0u; head < KV_HEADS; head++) {
    var sensitivity = 0.0;
    var mass = 0.0;
    for (var token = thread; token < middle; token += THREADS) {
      sensitivity += sensitivities[token * KV_HEADS + head];
      mass += masses[token * KV_HEADS + head];
    }
    sensitivity = block_sum(thread, sensitivity);
    mass = block_sum(thread, mass);
    largest = max(largest, sensitivity);
    if (thread == 0u) {
      head_factors[head] = sensitivity;
    }
    for (var token = thread; token < middle; token += THREADS) {
      let at = token * KV_HEADS + head;
      value_weights[at] = value_weight(masses[at], mass / count);
    }
  }
  if (thread == 0u) {
    for (var head = 0u; head < KV_HEADS; head++) {
      head_factors[head] = head_factor(head_factors[head], largest);
    }
  }

  // A row holds the keys of all heads, so a token has one weight for them: first the roots, then over their mean.
  var roots = 0.0;
  for (var token = thread; token < middle; token += THREADS) {
    var sensitivity = 0.0;
    for (var head = 0u; head < KV_HEADS; head++) {
      sensitivity += sensitivities[token * KV_HEADS + head];
    }
    let root = sqrt(sensitivity);
    token_weights[token] = root;
    roots += root;
  }
  roots = block_sum(thread, roots);
  var weights = 0.0;
  for (var token = thread; token < middle; token += THREADS) {
    let weight = token_weight(token_weights[token], roots / count);
    token_weights[token] = weight;
    weights += weight;
  }
  // The least weight has raised the mean.
  weights = block_sum(thread, weights);
  for (var token = thread; token < middle; token += THREADS) {
    token_weights[token] *= count / weights;
  }
}
