// tilt_allocate: Shares the nibbles of a row out among the KV heads for the least error together, and places fields; one block.
// Stage fit of scheme tilt-fast for llama-3.1-8b. CUDA for sm_80 on, tensor cores. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 16 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: sharedMatrix = 1

#include "prelude.cuh"

constexpr u32 KV_HEADS = 8;  // KV heads
constexpr u32 GROUP_COMPONENTS = 16;  // components that share a width
constexpr u32 GROUPS = 8;  // groups of components of a KV head
constexpr u32 FIELD_WORDS = 10;  // words that describe the fields of a KV head's key codes
constexpr u32 ROW_VALUE_WORDS = 544;  // words of a KV head's value codes and norms in a row
constexpr u32 KEY_NIBBLES = 24;  // nibbles of a group that a row has for all KV heads
constexpr u32 AT_KEY_FIELDS = 45;  // in the record, first word of keyFields: u32 [8 KV heads][8 groups, nibbles, first word]: bits + 16 * bit + 65536 * slot
constexpr u32 THREADS = 64;  // threads of a block
constexpr u32 WIDTH_CHOICES = 8;  // widths that a group of components may have

// dsl/codecs/midRise.ts:41 midRiseWidth
// The widths that bits are allocated from, as `choice` goes from 0 to 7: every one to 6 bits, then 8.
__device__ __forceinline__ u32 mid_rise_width(u32 choice) {
  return choice < 7u ? choice : 8u;
}

// Nibbles that the planes of one head's fields take: every field in the first plane with room, in the order of groups, whose
// widths do not ascend; the last plane of 4 bits or fewer is a nibble plane. Calls place(group, bit) for those with bits.
template <typename Place>
__device__ __forceinline__ u32 place_fields(const u32 (&widths)[GROUPS], Place place) {
  u32 used[GROUPS] = {};  // bits of every plane
  u32 planes = 0;
  for (u32 group = 0; group < GROUPS; ++group) {
    const u32 bits = widths[group];
    if (bits == 0) break;
    u32 plane = 0;
    while (plane < planes && used[plane] + bits > 8) ++plane;
    planes = max(planes, plane + 1);
    place(group, plane * 8 + used[plane]);
    used[plane] += bits;
  }
  return planes * 2 - (planes > 0 && used[planes - 1] <= 4 ? 1 : 0);
}

// Lists of `groups` widths that do not ascend, from so many choices: binomial(groups + choices - 1, groups).
__device__ __forceinline__ u32 lists_of(u32 groups, u32 choices) {
  u32 count = 1;
  for (u32 i = 1; i <= groups; ++i) count = count * (choices - 1 + i) / i;
  return count;
}

// The widths of a candidate. All lists that do not ascend are numbered from the widest on.
__device__ __forceinline__ void widths_of(u32 candidate, u32 (&widths)[GROUPS]) {
  u32 choice = 0;  // from the widest on
  for (u32 group = 0; group < GROUPS; ++group) {
    for (;; ++choice) {
      const u32 lists = lists_of(GROUPS - 1 - group, WIDTH_CHOICES - choice);
      if (candidate < lists) break;
      candidate -= lists;
    }
    widths[group] = mid_rise_width(WIDTH_CHOICES - 1 - choice);
  }
}

constexpr u32 most_nibbles = 2 * GROUPS;

// One block. best[n]: least error of the heads so far in n nibbles or fewer, without the head at hand and with it, in turns.
extern "C" __global__ void __launch_bounds__(64) tilt_allocate(
    const u32* __restrict__ sequence,  // record of this sequence: lengths, then part offsets in words
    const float* __restrict__ head_errors,  // [8 KV heads][17 numbers of nibbles]
    const u32* __restrict__ head_candidates,  // [8 KV heads][17 numbers of nibbles]
    u32* choices,  // [8 KV heads][25], scratch: the nibbles that a head gets of so many
    u32* cache  // all compressed parts of all sequences; offsets come from the record
) {
  __shared__ float best[2][KEY_NIBBLES + 1];
  __shared__ u32 taken[KV_HEADS];  // nibbles of every head
  for (u32 room = threadIdx.x; room <= KEY_NIBBLES; room += THREADS) best[0][room] = 0.0f;
  for (u32 head = 0; head < KV_HEADS; ++head) {
    __syncthreads();  // the head before is complete
    const float* before = best[head % 2];
    float* after = best[(head + 1) % 2];
    const float* own = head_errors + head * (most_nibbles + 1);
    for (u32 room = threadIdx.x; room <= KEY_NIBBLES; room += THREADS) {
      float least = INFINITY;
      u32 chosen = 0;
      for (u32 nibbles = 0; nibbles <= min(room, most_nibbles); ++nibbles) {
        const float error = before[room - nibbles] + own[nibbles];
        if (error < least) {
          least = error;
          chosen = nibbles;
        }
      }
      after[room] = least;
      choices[head * (KEY_NIBBLES + 1) + room] = chosen;
    }
  }
  __syncthreads();  // all choices are known
  if (threadIdx.x == 0) {
    // One thread, from the last head back: each choice depends on what later heads took.
    u32 room = KEY_NIBBLES;
    for (u32 head = KV_HEADS; head-- > 0;) {
      taken[head] = choices[head * (KEY_NIBBLES + 1) + room];
      room -= taken[head];
    }
  }
  __syncthreads();  // every head's nibbles are known

  // Where the fields lie, for every reader; a head a thread.
  for (u32 head = threadIdx.x; head < KV_HEADS; head += THREADS) {
    u32 widths[GROUPS];
    u32 bits_at[GROUPS] = {};
    widths_of(head_candidates[head * (most_nibbles + 1) + taken[head]], widths);
    place_fields(widths, [&](u32 group, u32 bit) { bits_at[group] = bit; });
    u32* fields = cache + sequence[AT_KEY_FIELDS] + head * FIELD_WORDS;
    for (u32 group = 0; group < GROUPS; ++group) {
      u32 slot = 0;  // groups of the head whose fields come before
      for (u32 other = 0; other < GROUPS; ++other) {
        if (widths[group] > 0 && widths[other] > 0 && bits_at[other] < bits_at[group]) ++slot;
      }
      fields[group] = widths[group] + 16 * bits_at[group] + 65536 * slot;
    }
    fields[GROUPS] = taken[head];
    u32 first = 0;
    for (u32 before = 0; before < head; ++before) first += taken[before] * 8 * GROUP_COMPONENTS + ROW_VALUE_WORDS;
    fields[GROUPS + 1] = first;
  }
}
