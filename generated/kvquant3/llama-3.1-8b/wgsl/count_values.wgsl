// count_values: How many outliers of the values were too many, in one block.
// Stage codeValues of scheme kvquant3 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, perChannel(nuq, 3 bits; a scale for 1 channel of the prompt without 0.005 of its numbers at each end), 2 outliers a token and KV head
// values: perToken(nuq, 3 bits; a scale for a head of 1 token without 0.01 of its numbers at each end), 2 outliers a token and KV head
// stream: lloydMax(3 bits); sinks 5, window 64
// tunables: tileTokens = 16

const KV_HEADS = 8u;  // KV heads
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_OUTLIER_COUNTS = 33u;  // in the record, first word of outlierCounts: u32 [keys, values]: outliers of the prompt past their caps, which are clamped
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][8 KV heads], outliers past the cap
@group(0) @binding(1) var<storage, read> clamped: array<u32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

var<workgroup> sums: array<u32, THREADS>;

// The outliers past the cap of all tokens and KV heads, summed by one block.
@compute @workgroup_size(256)
fn count_values(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let count = sequence[AT_MIDDLE_TOKENS] * KV_HEADS;
  var sum = 0u;
  for (var i = thread; i < count; i += THREADS) {
    sum += clamped[i];
  }
  sums[thread] = sum;
  for (var half = THREADS / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();  // the sums that are added are there
    if (thread < half) {
      sums[thread] += sums[thread + half];
    }
  }
  if (thread == 0u) {
    let counts = sequence[AT_OUTLIER_COUNTS];
    cache[counts + 1u] = sums[0];
  }
}
