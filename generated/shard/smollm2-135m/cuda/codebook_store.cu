// codebook_store: The codebook as f16 in the cache.
// Stage codebook of scheme shard for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: pointsPerBlock = 2048, warps = 8

#include "prelude.cuh"

constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 THREADS = 64;  // threads of a block

// One word (two channels of an entry) a thread.
extern "C" __global__ void __launch_bounds__(64) codebook_store(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ centroids,  // [256][4]
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  const u32 word = blockIdx.x * THREADS + threadIdx.x;
  if (word >= ENTRIES * CHANNELS / 2) return;
  cache[sequence[AT_CODEBOOK] + word] = pack_half2(centroids[word * 2], centroids[word * 2 + 1]);
}
