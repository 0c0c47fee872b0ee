// observe_softmax: Turns the scores of one query of one head into probabilities, in place, and takes its output.
// Stage observe of scheme shard-plus for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 64u;  // channels of a head
const GROUP_SIZE = 3u;  // query heads that share a KV head
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const AT_SLIDING_WINDOW = 8u;  // in the record, tokens that a query sees, itself included; 0 for all
const AT_QUERY_TOKENS = 9u;  // in the record, queries that came with the prompt, of its last tokens
const THREADS = 256u;  // threads of a block
const OBSERVED_QUERIES = 32u;  // queries that are observed, at most: the last ones given
const SLICES = 8u;  // threads, or blocks, that share one sum

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [3 KV heads][prompt tokens][64]
@group(0) @binding(1) var<storage, read> values: array<u32>;
// [9 heads][observed queries][prompt tokens], scores at first
@group(0) @binding(2) var<storage, read_write> probabilities: array<f32>;
// [9 heads][observed queries][64]
@group(0) @binding(3) var<storage, read_write> outputs: array<f32>;

const HEAD_WORDS = HEAD_DIM / 2u;

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

// Two channels of the output over every SLICES-th token.
var<workgroup> parts: array<vec2f, SLICES * HEAD_WORDS>;

// One observed query of one query head a block.
@compute @workgroup_size(256)
fn observe_softmax(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let prompt = sequence[AT_PROMPT_TOKENS];
  let observed = min(sequence[AT_QUERY_TOKENS], OBSERVED_QUERIES);
  let index = block.x;
  if (index >= observed) {
    return;
  }
  let row = block.y * observed + index;
  let own = row * prompt;
  // The queries are those of the last tokens; each sees the tokens up to its own.
  let end = prompt - observed + index + 1u;
  let sliding = sequence[AT_SLIDING_WINDOW];
  let begin = select(end - min(sliding, end), 0u, sliding == 0u);

  var largest = MASKED;
  for (var token = begin + thread; token < end; token += THREADS) {
    largest = max(largest, probabilities[own + token]);
  }
  largest = block_max(thread, largest);
  var sum = 0.0;
  for (var token = begin + thread; token < end; token += THREADS) {
    sum += exp2(probabilities[own + token] - largest);
  }
  sum = block_sum(thread, sum);
  for (var token = thread; token < prompt; token += THREADS) {
    var probability = 0.0;
    if (token >= begin && token < end) {
      probability = exp2(probabilities[own + token] - largest) / sum;
    }
    probabilities[own + token] = probability;
  }
  // The probabilities of all tokens are there.
  storageBarrier();

  let word = thread % HEAD_WORDS;
  let slice = thread / HEAD_WORDS;
  if (slice < SLICES) {
    let rows = block.y / GROUP_SIZE * prompt;
    var part = vec2f();
    for (var token = begin + slice; token < end; token += SLICES) {
      part += probabilities[own + token] * unpack2x16float(values[(rows + token) * HEAD_WORDS + word]);
    }
    parts[thread] = part;
  }
  // Every slice of the tokens is summed.
  workgroupBarrier();
  if (thread >= HEAD_WORDS) {
    return;
  }
  var output = vec2f();
  for (var i = 0u; i < SLICES; i++) {
    output += parts[i * HEAD_WORDS + thread];
  }
  outputs[row * HEAD_DIM + thread * 2u] = output.x;
  outputs[row * HEAD_DIM + thread * 2u + 1u] = output.y;
}
