// tilt_weigh: Root mean squares over the largest of the layer, floored; both channels of a pair get the same f16.
// Stage weigh of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const KV_HEADS = 3u;  // KV heads
const GROUP_SIZE = 3u;  // query heads that share a KV head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const AT_QUERY_TOKENS = 9u;  // in the record, queries that came with the prompt, of its last tokens
const AT_KEY_WEIGHTS = 27u;  // in the record, first word of keyWeights: f16 [192 channels], above 0: keys are coded times this
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [3 KV heads][32 pairs]
@group(0) @binding(1) var<storage, read> squares: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;
// [192], rounded to f16
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;

// The nearest float16, ties to even.
fn round_to_half(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return x;
  }
  // Ten bits of the fraction stay; beyond the largest half lies infinity.
  var rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  rounded = select(rounded, 0x7f800000u, rounded >= 0x47800000u);
  // Below 2^-14 halves are the multiples of 2^-24.
  if (size < 0x38800000u) {
    rounded = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f);
  }
  return bitcast<f32>(sign | rounded);
}

// dsl/codecs/pca.ts:109 pairWeight
// The weight of a pair of channels: the root mean square that queries have there, over the largest of the layer.
fn pair_weight(root_mean_square: f32, largest: f32) -> f32 {
  var weight: f32 = 1.0;
  if (largest > 0.0) {
    weight = max(root_mean_square / largest, 0.001);
  }
  return round_to_half(weight);
}

var<workgroup> partial: array<f32, THREADS>;

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

// One block. Channels lie in the order of pairs: the first ones of all pairs, then the second ones.
@compute @workgroup_size(256)
fn tilt_weigh(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  // Two squares a pair.
  let count = f32(GROUP_SIZE * 2u) * f32(max(sequence[AT_QUERY_TOKENS], 1u));
  var largest = 0.0;
  for (var i = thread; i < KV_HEADS * PAIRS; i += THREADS) {
    largest = max(largest, sqrt(squares[i] / count));
  }
  largest = block_max(thread, largest);
  for (var i = thread; i < KV_HEADS * PAIRS; i += THREADS) {
    let weight = pair_weight(sqrt(squares[i] / count), largest);
    let pair = i / PAIRS * HEAD_DIM + i % PAIRS;
    weights[pair] = weight;
    weights[pair + PAIRS] = weight;
  }
  // All weights are there: the two channels of a word are of two pairs.
  storageBarrier();
  for (var word = thread; word < WIDTH / 2u; word += THREADS) {
    cache[sequence[AT_KEY_WEIGHTS] + word] = pack2x16float(vec2f(weights[word * 2u], weights[word * 2u + 1u]));
  }
}
