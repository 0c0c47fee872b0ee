// assign_values: The index of the nearest stored f16 entry for every vector; four indices, one word, a thread.
// Stage codebook of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const VALUE_ROW_WORDS = 12u;  // words of one token's value indices, four each
const AT_MIDDLE_TOKENS = 1u;  // record: compressed tokens of the prompt
const AT_VALUE_CODES = 17u;  // record: where u8 [middle][48 vectors] begins
const AT_CODEBOOK = 18u;  // record: where f16 [256 entries][4] begins
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], after Hadamard
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
// [192]
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

// dsl/codecs/vq.ts:29 centroidDistance, channels = 4
// Squared distance between a point and one codebook entry.
fn centroid_distance_4(point: ptr<function, array<f32, 4>>, entry: u32) -> f32 {
  var distance: f32 = 0.0;
  for (var k: u32 = 0u; k < 4u; k++) {
    let difference: f32 = (*point)[k] - centroid_at(entry * 4u + k);
    distance += difference * difference;
  }
  return distance;
}

// dsl/codecs/vq.ts:45 nearestCentroid, channels = 4, entries = 256
// Index of the nearest codebook entry; the lowest on ties.
fn nearest_centroid_4_256(point: ptr<function, array<f32, 4>>) -> u32 {
  var best: u32 = 0u;
  var best_distance: f32 = centroid_distance_4(point, 0u);
  for (var entry: u32 = 1u; entry < 256u; entry++) {
    let distance: f32 = centroid_distance_4(point, entry);
    if (distance < best_distance) {
      best = entry;
      best_distance = distance;
    }
  }
  return best;
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

// The codebook as it is stored, rounded to f16.
var<workgroup> entries: array<f32, ENTRIES * CHANNELS>;

fn centroid_at(i: u32) -> f32 {
  return entries[i];
}

// One thread a word, that is the indices of four neighbouring points.
@compute @workgroup_size(128)
fn assign_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  for (var i = thread; i < ENTRIES * CHANNELS / 2u; i += THREADS) {
    let pair = unpack2x16float(cache[sequence[AT_CODEBOOK] + i]);
    entries[i * 2u] = pair.x;
    entries[i * 2u + 1u] = pair.y;
  }
  // The codebook is in workgroup memory.
  workgroupBarrier();
  let word = block.x * THREADS + thread;
  if (word >= sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS) {
    return;
  }
  var packed = 0u;
  for (var i = 0u; i < 4u; i++) {
    var point = load_point(word * 4u + i);
    packed |= nearest_centroid_4_256(&point) << (i * 8u);
  }
  cache[sequence[AT_VALUE_CODES] + word] = packed;
}
