// codebook_seed: k-means++ over a strided sample of at most 4096 points, one block.
// Stage codebook of scheme shard for gemma-2-9b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 384, bits 4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

const WIDTH = 2048u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 256u;  // threads of a block
const SEED = 1u;  // of the random start
const SAMPLE = 4096u;  // points of the k-means++ sample, at most

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][2048], after Hadamard
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
// [2048]
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// [256][4]
@group(0) @binding(3) var<storage, read_write> centroids: array<f32>;
// [4096], squared, to the nearest chosen point
@group(0) @binding(4) var<storage, read_write> distances: array<f32>;

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

// The middle values as points of CHANNELS neighbouring channels, token by token.
const POINTS_PER_TOKEN = WIDTH / CHANNELS;

// The channels of one point, each over the scale of its (head, channel).
fn load_point(point: u32) -> array<f32, CHANNELS> {
  var channels: array<f32, CHANNELS>;
  for (var k = 0u; k < CHANNELS; k++) {
    let i = point * CHANNELS + k;
    channels[k] = rotated[i] / channel_scales[i % WIDTH];
  }
  return channels;
}

// Squared distances, summed over each thread's run of the sample.
var<workgroup> sums: array<f32, THREADS>;
// The centroid chosen last, and the sample point it came from; the size of the sample when that is used up.
var<workgroup> newest: array<f32, CHANNELS>;
var<workgroup> chosen: u32;

// The point of the sequence that a sample point stands for: one of every `points / count`, at a place that moves on
// from one to the next, so that no common factor with the points of a token leaves some channels out.
fn point_of(sample: u32, count: u32, points: u32) -> u32 {
  let stride = points / count;
  return sample * stride + sample * (points % count) / count + sample % stride;
}

// Draws the next sample point with a probability in proportion to its distance.
fn draw(entry: u32, count: u32, run: u32) -> u32 {
  var total = 0.0;
  for (var i = 0u; i < THREADS; i++) {
    total += sums[i];
  }
  let target_sum = uniform_random(SEED, entry) * total;
  // Every point was chosen, or equals one that was: the next in order.
  var next = min(entry, count);
  var before = 0.0;
  for (var i = 0u; i < THREADS; i++) {
    let after = before + sums[i];
    if (after > target_sum) {
      let end = min((i + 1u) * run, count);
      for (var sample = i * run; sample < end; sample++) {
        if (distances[sample] > 0.0) {
          next = sample;
        }
        before += distances[sample];
        if (before > target_sum) {
          break;
        }
      }
      break;
    }
    before = after;
  }
  return next;
}

// One block. Each thread keeps the distances of a run of neighbouring sample points, so that adding the threads' sums
// in order walks through the sample in order.
@compute @workgroup_size(256)
fn codebook_seed(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let points = sequence[AT_MIDDLE_TOKENS] * POINTS_PER_TOKEN;
  let count = min(points, SAMPLE);
  let run = (count + THREADS - 1u) / THREADS;
  let first = min(thread * run, count);
  let end = min(first + run, count);
  if (thread == 0u && count > 0u) {
    chosen = min(u32(uniform_random(SEED, 0u) * f32(count)), count - 1u);
  }
  for (var entry = 0u; entry < ENTRIES; entry++) {
    // Past the end of the sample there is nothing new: the entry repeats the last one, which is zero without points.
    if (thread == 0u) {
      if (chosen < count) {
        newest = load_point(point_of(chosen, count, points));
      }
      for (var k = 0u; k < CHANNELS; k++) {
        centroids[entry * CHANNELS + k] = newest[k];
      }
    }
    // The newest centroid is known.
    workgroupBarrier();
    var sum = 0.0;
    for (var sample = first; sample < end; sample++) {
      let point = load_point(point_of(sample, count, points));
      var distance = 0.0;
      for (var k = 0u; k < CHANNELS; k++) {
        let difference = point[k] - newest[k];
        distance += difference * difference;
      }
      if (entry > 0u) {
        distance = min(distance, distances[sample]);
      }
      distances[sample] = distance;
      sum += distance;
    }
    sums[thread] = sum;
    // All distances to the chosen points are known to the thread that draws.
    storageBarrier();
    workgroupBarrier();
    if (thread == 0u) {
      chosen = draw(entry + 1u, count, run);
    }
    // The draw is over before any distance changes again.
    workgroupBarrier();
  }
}
