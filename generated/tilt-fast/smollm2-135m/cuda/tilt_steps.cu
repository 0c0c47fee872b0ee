// tilt_steps: The step of every component, from its magnitudes in a range block and its width; one of them a thread.
// Stage codeKeys of scheme tilt-fast for smollm2-135m. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

#include "prelude.cuh"

constexpr u32 HEAD_DIM = 64;  // channels of a head
constexpr u32 KV_HEADS = 3;  // KV heads
constexpr u32 WIDTH = 192;  // KV_HEADS * HEAD_DIM
constexpr u32 RANGE_BLOCK = 512;  // positions that share the steps of components; 0 for all
constexpr u32 GROUP_COMPONENTS = 8;  // components that share a width
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 AT_SINK_TOKENS = 0;  // in the record, exact tokens at the start
constexpr u32 AT_MIDDLE_TOKENS = 1;  // in the record, compressed tokens of the prompt
constexpr u32 AT_KEY_STEPS = 44;  // in the record, first word of keySteps: f16 [range blocks][3 KV heads][64] components, 128 times step and scale of the basis column
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [3 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot

// dsl/codecs/tileRows.ts:62 foldedStep
// The step of a component as it is stored: 128 times its range over 2^bits (twice the mean magnitude with one bit), times the scale of its column of the basis, so that a reader multiplies once.
__device__ __forceinline__ float folded_step(float max_abs, float mean_abs, u32 bits, float column_scale) {
  float step = 0.0f;
  if (bits == 1u) {
    step = 2.0f * mean_abs;
  } else if (bits > 1u) {
    step = 2.0f * max_abs / float(1u << bits);
  }
  return round_to_half(fminf(128.0f * column_scale * step, 65504.0f));
}

// The middle tokens of one range block, of one KV head a block; one component a thread.
extern "C" __global__ void __launch_bounds__(64) tilt_steps(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ coefficients,  // [middle tokens][192 components]
    const float* __restrict__ column_scales,  // [192 components]
    u32* cache,  // all compressed parts of all sequences; offsets come from the record
    float* steps  // [range blocks][192 components], as the stored ones stand for
) {
  __shared__ float stored[HEAD_DIM];
  const u32 sinks = sequence[AT_SINK_TOKENS];
  const u32 end = sinks + sequence[AT_MIDDLE_TOKENS];
  const u32 first = max(blockIdx.x * RANGE_BLOCK, sinks);
  const u32 last = min((blockIdx.x + 1) * RANGE_BLOCK, end);
  if (first >= last) return;

  const u32 head = blockIdx.y;
  const u32 component = threadIdx.x;
  const u32 row = (blockIdx.x * KV_HEADS + head) * HEAD_DIM;
  if (component < HEAD_DIM) {
    const u32 bits = cache[sequence[AT_KEY_FIELDS] + head * FIELD_WORDS + component / GROUP_COMPONENTS] & 15u;
    float largest = 0.0f;
    float sum = 0.0f;
#pragma unroll 8  // loads in flight together
    for (u32 position = first; position < last; ++position) {
      const float size = fabsf(coefficients[(position - sinks) * WIDTH + head * HEAD_DIM + component]);
      largest = fmaxf(largest, size);
      sum += size;
    }
    const float scale = column_scales[head * HEAD_DIM + component];
    const float folded = folded_step(largest, sum / static_cast<float>(last - first), bits, scale);
    stored[component] = folded;
    steps[row + component] = scale > 0.0f ? folded / (128.0f * scale) : 0.0f;
  }
  __syncthreads();  // both steps of every word are there
  if (component < HEAD_DIM / 2) {
    cache[sequence[AT_KEY_STEPS] + row / 2 + component] = pack_half2(stored[component * 2], stored[component * 2 + 1]);
  }
}
