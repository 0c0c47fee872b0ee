// codebook_assign: Assigns a chunk of points and sums them by entry, always in the same order: no float atomics.
// Stage codebook of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 256u;  // threads of a block
const POINTS_PER_BLOCK = 2048u;  // points that a block assigns

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

// dsl/codecs/vq.ts:57 centroidDistances, channels = 4
// Squared distances between four points (channel k of all four in `points[k]`) and one codebook entry.
fn centroid_distances_4(points: ptr<function, array<vec4f, 4>>, entry: u32) -> vec4f {
  var distances: vec4f = vec4f(0.0, 0.0, 0.0, 0.0);
  for (var k: u32 = 0u; k < 4u; k++) {
    let centroid: f32 = centroid_at(entry * 4u + k);
    let differences: vec4f = (*points)[k] - vec4f(centroid, centroid, centroid, centroid);
    distances = distances + differences * differences;
  }
  return distances;
}

// dsl/codecs/vq.ts:77 nearestCentroids, channels = 4, entries = 256
// Indices of the nearest codebook entries of four points; the lowest on ties.
fn nearest_centroids_4_256(points: ptr<function, array<vec4f, 4>>) -> vec4u {
  var best: vec4u = vec4u(0u, 0u, 0u, 0u);
  var least: vec4f = centroid_distances_4(points, 0u);
  for (var entry: u32 = 1u; entry < 256u; entry++) {
    let distances: vec4f = centroid_distances_4(points, entry);
    best = vec4u(select(best.x, entry, distances.x < least.x), select(best.y, entry, distances.y < least.y), select(best.z, entry, distances.z < least.z), select(best.w, entry, distances.w < least.w));
    least = vec4f(min(distances.x, least.x), min(distances.y, least.y), min(distances.z, least.z), min(distances.w, least.w));
  }
  return best;
}

// The middle values as vectors of CHANNELS neighbouring channels, token by token.
const VECTORS_PER_TOKEN = WIDTH / CHANNELS;

fn vector_channel(vector: u32, k: u32) -> f32 {
  let i = vector * CHANNELS + k;
  return rotated[i] / channel_scales[i % WIDTH];
}

// Four neighbouring vectors, channel k of all four in element k; places past the last vector repeat it.
fn load_points(first: u32, last: u32) -> array<vec4f, CHANNELS> {
  var points = array<vec4f, CHANNELS>();
  for (var k = 0u; k < CHANNELS; k++) {
    points[k] = vec4f(
      vector_channel(min(first, last), k),
      vector_channel(min(first + 1u, last), k),
      vector_channel(min(first + 2u, last), k),
      vector_channel(min(first + 3u, last), k),
    );
  }
  return points;
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
  let points = sequence[AT_MIDDLE_TOKENS] * VECTORS_PER_TOKEN;
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
    var four = load_points(first + word * 4u, points - 1u);
    let found = nearest_centroids_4_256(&four);
    nearest[word] = found.x | (found.y << 8u) | (found.z << 16u) | (found.w << 24u);
  }
  // Every point of the chunk has its entry.
  workgroupBarrier();
  if (thread >= ENTRIES) {
    return;
  }
  // Each entry is summed by one thread in point order: the same sum on every run, without float atomics.
  var sum = array<f32, CHANNELS>();
  var members = 0u;
  for (var word = 0u; word < (count + 3u) / 4u; word++) {
    let differs = nearest[word] ^ (thread * 0x01010101u);
    // A word without a zero byte holds no point of this entry; most words are passed over here.
    if (((differs - 0x01010101u) & ~differs & 0x80808080u) == 0u) {
      continue;
    }
    for (var i = 0u; i < 4u; i++) {
      let index = word * 4u + i;
      if (extractBits(differs, i * 8u, 8u) != 0u || index >= count) {
        continue;
      }
      for (var k = 0u; k < CHANNELS; k++) {
        sum[k] += vector_channel(first + index, k);
      }
      members++;
    }
  }
  let cell = (block.x * ENTRIES + thread) * (CHANNELS + 1u);
  for (var k = 0u; k < CHANNELS; k++) {
    partial_cells[cell + k] = sum[k];
  }
  partial_cells[cell + CHANNELS] = f32(members);
}
