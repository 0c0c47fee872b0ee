// codebook_update: New centroids from the sums, always in the same order; an empty cell keeps its centroid.
// Stage codebook of scheme shard for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 64u;  // threads of a block
const POINTS_PER_BLOCK = 2048u;  // points that a block assigns

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [blocks][256][5]: sums, then the count
@group(0) @binding(1) var<storage, read> partial_cells: array<f32>;
// [256][4]
@group(0) @binding(2) var<storage, read_write> centroids: array<f32>;

const POINTS_PER_TOKEN = WIDTH / CHANNELS;

// One thread an entry: the mean of its members over all blocks, block by block in order.
@compute @workgroup_size(64)
fn codebook_update(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let entry = block.x * THREADS + thread;
  if (entry >= ENTRIES) {
    return;
  }
  let points = sequence[AT_MIDDLE_TOKENS] * POINTS_PER_TOKEN;
  let chunks = (points + POINTS_PER_BLOCK - 1u) / POINTS_PER_BLOCK;
  var sum = array<f32, CHANNELS>();
  var members = 0.0;
  for (var chunk = 0u; chunk < chunks; chunk++) {
    let cell = (chunk * ENTRIES + entry) * (CHANNELS + 1u);
    for (var k = 0u; k < CHANNELS; k++) {
      sum[k] += partial_cells[cell + k];
    }
    members += partial_cells[cell + CHANNELS];
  }
  // An empty cell keeps its centroid.
  if (members == 0.0) {
    return;
  }
  for (var k = 0u; k < CHANNELS; k++) {
    centroids[entry * CHANNELS + k] = sum[k] / members;
  }
}
