// move_words: One tile of one move a block, from one buffer to another.
// Stage copy of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 THREADS = 256;  // threads of a block
constexpr u32 TILE_WORDS = 1024;  // words that a block copies
constexpr u32 MOVE_WORDS = 3;  // words that describe one move

// One block a tile of a move. What is read is another buffer than what is written, so moves may come in any order.
extern "C" __global__ void __launch_bounds__(256) move_words(
    const u32* __restrict__ moves,  // [moves][from word, to word, words]
    const u32* __restrict__ origin,  // the cache, or scratch
    u32* destination  // scratch, or the cache
) {
  const u32* move = moves + blockIdx.y * MOVE_WORDS;
  const u32 from = move[0];
  const u32 to = move[1];
  const u32 first = blockIdx.x * TILE_WORDS;
  const u32 end = min(first + TILE_WORDS, move[2]);
  for (u32 word = first + threadIdx.x; word < end; word += THREADS) destination[to + word] = origin[from + word];
}
