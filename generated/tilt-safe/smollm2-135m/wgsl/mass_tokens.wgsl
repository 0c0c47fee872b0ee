// mass_tokens: Softmax of every row of scores, summed over the query tokens and heads of a KV head; one block each.
// Stage mass of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const GROUP_SIZE = 3u;  // query heads that share a KV head
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const AT_SLIDING_WINDOW = 8u;  // in the record, tokens that a query sees, itself included; 0 for all
const THREADS = 256u;  // threads of a block

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [query tokens, tokens held after the last of them]
@group(0) @binding(1) var<storage, read> call: array<u32>;
// [9 heads][query tokens][tokens], base-2 exponents
@group(0) @binding(2) var<storage, read> scores: array<f32>;
// [3 KV heads][tokens]
@group(0) @binding(3) var<storage, read_write> masses: array<f32>;

// Tokens that the sequence holds, in all its segments.
fn held_tokens() -> u32 {
  return sequence[AT_SINK_TOKENS] + sequence[AT_MIDDLE_TOKENS] + sequence[AT_STREAM_TOKENS] + sequence[AT_WINDOW_TOKENS];
}

// The exponent of a token that is not seen: below every other, and finite, as WGSL has no infinity.
const MASKED = -1e30;

var<workgroup> partial: array<f32, THREADS>;

// Sum of one value a thread; the number of threads alone decides the order. Every thread must call it and gets the sum.
fn block_sum(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] += partial[thread + count - pairs];
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// Largest of one value a thread. Every thread must call it and gets the result.
fn block_max(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] = max(partial[thread], partial[thread + count - pairs]);
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// One KV head a block, row after row. A thread comes back to the same tokens in every row, so that it alone adds to them,
// in the same order each time.
@compute @workgroup_size(256)
fn mass_tokens(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let tokens = held_tokens();
  let sliding = sequence[AT_SLIDING_WINDOW];
  let queries = call[0];
  let after = call[1];
  let own = block.x * tokens;
  for (var token = thread; token < tokens; token += THREADS) {
    masses[own + token] = 0.0;
  }
  for (var i = 0u; i < GROUP_SIZE * queries; i++) {
    let row = (block.x * GROUP_SIZE * queries + i) * tokens;
    // A query sees the tokens up to its own, and of those no more than the sliding window.
    let later = after + queries - 1u - i % queries;
    let end = tokens - min(later, tokens);
    let begin = select(end - min(sliding, end), 0u, sliding == 0u);
    if (begin == end) {
      continue;
    }
    var largest = MASKED;
    for (var token = thread; token < end; token += THREADS) {
      if (token >= begin) {
        largest = max(largest, scores[row + token]);
      }
    }
    largest = block_max(thread, largest);
    var sum = 0.0;
    for (var token = thread; token < end; token += THREADS) {
      if (token >= begin) {
        sum += exp2(scores[row + token] - largest);
      }
    }
    sum = block_sum(thread, sum);
    for (var token = thread; token < end; token += THREADS) {
      if (token >= begin) {
        masses[own + token] += exp2(scores[row + token] - largest) / sum;
      }
    }
  }
}
