// value_products: Sums of y * y and of y * coded y of every channel over a tile of tokens.
// Stage unbias of scheme shard-plus for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 128;  // channels of a head
constexpr u32 WIDTH = 1024;  // KV_HEADS * HEAD_DIM
constexpr u32 CHANNELS = 4;  // channels of a value vector
constexpr u32 ENTRIES = 256;  // codebook entries
constexpr u32 VALUE_ROW_WORDS = 64;  // words of one token's value indices, four each
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_VALUE_CODES = 19;  // in the record, first word of valueCodes: u8 [middle][256 vectors]
constexpr u32 AT_CODEBOOK = 20;  // in the record, first word of codebook: f16 [256 entries][4]
constexpr u32 THREADS = 128;  // threads of a block
constexpr u32 TILE_TOKENS = 32;  // tokens of a tile

// Element `index` of an f16 array held two a word.
__device__ __forceinline__ float half_at(const u32* words, u32 index) {
  const u32 word = words[index / 2];
  return half_to_float(static_cast<u16>(index % 2 == 0 ? word & 0xffffu : word >> 16));
}

// One tile of middle tokens of one KV head a block, one channel a thread.
extern "C" __global__ void __launch_bounds__(128) value_products(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ rotated,  // [middle tokens][1024], after Hadamard
    const float* __restrict__ channel_scales,  // [1024], as the codes were chosen with
    const u32* __restrict__ cache,  // all compressed parts of all sequences; offsets come from the record
    float* partial_products  // [tiles][2: squares, products with the coded value][1024]
) {
  __shared__ float entries[ENTRIES * CHANNELS];  // as stored, rounded to f16
  const u32* stored = cache + sequence[AT_CODEBOOK];
  for (u32 i = threadIdx.x; i < ENTRIES * CHANNELS; i += THREADS) entries[i] = half_at(stored, i);
  __syncthreads();  // the codebook is in shared memory

  const u32 middle = sequence[AT_MIDDLE_TOKENS];
  const u32 first = blockIdx.x * TILE_TOKENS;
  if (first >= middle || threadIdx.x >= HEAD_DIM) return;

  const u32 end = min(first + TILE_TOKENS, middle);
  const u32 channel = blockIdx.y * HEAD_DIM + threadIdx.x;
  const u32 vector = channel / CHANNELS;
  const u32* codes = cache + sequence[AT_VALUE_CODES] + vector / 4;
  const float scale = channel_scales[channel];
  float squares = 0.0f;
  float products = 0.0f;
  for (u32 token = first; token < end; ++token) {
    const float value = rotated[token * WIDTH + channel];
    const u32 code = codes[token * VALUE_ROW_WORDS] >> (vector % 4 * 8) & 0xffu;
    squares += value * value;
    products += value * (entries[code * CHANNELS + channel % CHANNELS] * scale);
  }
  partial_products[blockIdx.x * 2 * WIDTH + channel] = squares;
  partial_products[(blockIdx.x * 2 + 1) * WIDTH + channel] = products;
}
