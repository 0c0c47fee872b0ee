// codebook_store: The codebook as f16 in the cache.
// Stage codebook of scheme shard for qwen2.5-7b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const AT_CODEBOOK = 20u;  // in the record, first word of codebook: f16 [256 entries][4]
const THREADS = 64u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [256][4]
@group(0) @binding(1) var<storage, read> centroids: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

// One thread a word, that is two channels of an entry.
@compute @workgroup_size(64)
fn codebook_store(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let word = block.x * THREADS + thread;
  if (word >= ENTRIES * CHANNELS / 2u) {
    return;
  }
  cache[sequence[AT_CODEBOOK] + word] = pack2x16float(vec2f(centroids[word * 2u], centroids[word * 2u + 1u]));
}
