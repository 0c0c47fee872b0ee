// assign_values: The index of the nearest stored f16 entry for every vector; four indices are a word.
// Stage codebook of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const VALUE_ROW_WORDS = 12u;  // words of one token's value indices, four each
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: u8 [middle][48 vectors]
const AT_CODEBOOK = 20u;  // in the record, first word of codebook: f16 [256 entries][4]
const THREADS = 128u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], after Hadamard
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
// [192]
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

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

// The codebook as it is stored, rounded to f16.
var<workgroup> entries: array<f32, ENTRIES * CHANNELS>;

fn centroid_at(i: u32) -> f32 {
  return entries[i];
}

// One thread a word, that is the indices of four neighbouring vectors.
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
  // Blocks lie side by side: one dimension of a grid may have no room for those of a long prompt.
  let word = (block.y * VALUE_ROW_WORDS + block.x) * THREADS + thread;
  let words = sequence[AT_MIDDLE_TOKENS] * VALUE_ROW_WORDS;
  if (word >= words) {
    return;
  }
  var four = load_points(word * 4u, words * 4u - 1u);
  let found = nearest_centroids_4_256(&four);
  cache[sequence[AT_VALUE_CODES] + word] = found.x | (found.y << 8u) | (found.z << 16u) | (found.w << 24u);
}
