// copy_words: One tile of one move a block; no range that is written overlaps another range.
// Stage copy of scheme latent-int8 for deepseek-v3. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// latent: perToken(symmetric, 8 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_WORDS = 1024;  // words that a block copies
constexpr u32 MOVE_WORDS = 3;  // words that describe one move

// One block a tile of a move; the grid is as wide as the longest move, so that tiles past the end of a shorter one are empty.
extern "C" __global__ void __launch_bounds__(256) copy_words(
    const u32* __restrict__ moves,  // [moves][from word, to word, words]
    u32* cache  // all compressed parts of all sequences; the moves say what of it is copied
) {
  const u32* move = moves + blockIdx.y * MOVE_WORDS;
  const u32 from = move[0];
  const u32 to = move[1];
  const u32 first = blockIdx.x * TILE_WORDS;
  const u32 end = min(first + TILE_WORDS, move[2]);
  for (u32 word = first + threadIdx.x; word < end; word += THREADS) cache[to + word] = cache[from + word];
}
