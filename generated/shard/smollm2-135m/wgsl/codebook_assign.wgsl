// codebook_assign: Assigns a chunk of points and sums them by entry, each entry in point order by one thread: no float atomics.
// Stage codebook of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 1024

const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const AT_MIDDLE_TOKENS = 1u;  // record: compressed tokens of the prompt
const THREADS = 256u;  // threads of a block
const POINTS_PER_BLOCK = 1024u;  // of this schedule

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], after Hadamard
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
// [192]
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// [256][4]
@group(0) @binding(3) var<storage, read> centroids: array<f32>;
// [blocks][256][5]: sums, then the count
@group(0) @binding(4) var<storage, read_write> partial_cells: array<f32>;

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

var<workgroup> entries: array<f32, ENTRIES * CHANNELS>;
// The entry of every point of the chunk, four a word, one byte each.
var<workgroup> nearest: array<u32, POINTS_PER_BLOCK / 4u>;

fn centroid_at(i: u32) -> f32 {
  return entries[i];
}

// One chunk of points a block: first four points a thread, then an entry a thread.
@compute @workgroup_size(256)
fn codebook_assign(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let points = sequence[AT_MIDDLE_TOKENS] * POINTS_PER_TOKEN;
  let first = block.x * POINTS_PER_BLOCK;
  if (first >= points) {
    return;
  }
  let count = min(POINTS_PER_BLOCK, points - first);
  for (var i = thread; i < ENTRIES * CHANNELS; i += THREADS) {
    entries[i] = centroids[i];
  }
  // The codebook is in workgroup memory.
  workgroupBarrier();
  for (var word = thread; word < (count + 3u) / 4u; word += THREADS) {
    var packed = 0u;
    for (var i = word * 4u; i < min(word * 4u + 4u, count); i++) {
      var point = load_point(first + i);
      packed |= nearest_centroid_4_256(&point) << ((i % 4u) * 8u);
    }
    nearest[word] = packed;
  }
  // Every point of the chunk has its entry.
  workgroupBarrier();
  if (thread >= ENTRIES) {
    return;
  }
  // Each entry is summed by one thread in point order: the same sum on every run, without float atomics.
  var sum: array<f32, CHANNELS>;
  var members = 0u;
  for (var i = 0u; i < count; i++) {
    if (extractBits(nearest[i / 4u], (i % 4u) * 8u, 8u) != thread) {
      continue;
    }
    let point = load_point(first + i);
    for (var k = 0u; k < CHANNELS; k++) {
      sum[k] += point[k];
    }
    members++;
  }
  let cell = (block.x * ENTRIES + thread) * (CHANNELS + 1u);
  for (var k = 0u; k < CHANNELS; k++) {
    partial_cells[cell + k] = sum[k];
  }
  partial_cells[cell + CHANNELS] = f32(members);
}
