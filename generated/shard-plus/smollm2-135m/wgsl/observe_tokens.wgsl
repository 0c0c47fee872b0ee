// observe_tokens: Sensitivity and attention of a tile of middle tokens, summed over queries and heads of a KV head.
// Stage observe of scheme shard-plus for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, 128 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 64u;  // channels of a head
const KV_HEADS = 3u;  // KV heads
const GROUP_SIZE = 3u;  // query heads that share a KV head
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const AT_QUERY_TOKENS = 9u;  // in the record, queries that came with the prompt, of its last tokens
const THREADS = 256u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile
const TOKEN_STRIDE = 33u;  // words from one token of a tile to the next; odd, to spread them over the banks
const OBSERVED_QUERIES = 32u;  // queries that are observed, at most: the last ones given
const SLICES = 8u;  // threads, or blocks, that share one sum

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [3 KV heads][prompt tokens][64]
@group(0) @binding(1) var<storage, read> values: array<u32>;
// [9 heads][observed queries][prompt tokens], 0 for tokens out of sight
@group(0) @binding(2) var<storage, read> probabilities: array<f32>;
// [9 heads][observed queries][64]
@group(0) @binding(3) var<storage, read> outputs: array<f32>;
// [middle tokens][3 KV heads]: sums of (probability * |value - output|)^2
@group(0) @binding(4) var<storage, read_write> sensitivities: array<f32>;
// [middle tokens][3 KV heads]: sums of probabilities
@group(0) @binding(5) var<storage, read_write> masses: array<f32>;

const HEAD_WORDS = HEAD_DIM / 2u;

// Values as they are given, two channels a word.
var<workgroup> tile: array<u32, TILE_TOKENS * TOKEN_STRIDE>;
// Sensitivity and mass over a slice of the rows.
var<workgroup> parts: array<vec2f, THREADS>;

// One tile of middle tokens of one KV head a block. A thread takes one token and every SLICES-th of the rows, which are
// the observed queries of all query heads of the group.
@compute @workgroup_size(256)
fn observe_tokens(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let prompt = sequence[AT_PROMPT_TOKENS];
  let middle = sequence[AT_MIDDLE_TOKENS];
  let rows = GROUP_SIZE * min(sequence[AT_QUERY_TOKENS], OBSERVED_QUERIES);
  let first = block.x * TILE_TOKENS;
  if (first >= middle) {
    return;
  }
  let count = min(TILE_TOKENS, middle - first);
  let place = sequence[AT_SINK_TOKENS] + first;
  let source = (block.y * prompt + place) * HEAD_WORDS;
  for (var i = thread; i < count * HEAD_WORDS; i += THREADS) {
    tile[i / HEAD_WORDS * TOKEN_STRIDE + i % HEAD_WORDS] = values[source + i];
  }
  // The values are staged.
  workgroupBarrier();
  let token = thread % TILE_TOKENS;
  var sums = vec2f();
  if (token < count) {
    for (var row = block.y * rows + thread / TILE_TOKENS; row < (block.y + 1u) * rows; row += SLICES) {
      // An error of the token's score moves the output by the probability times what sets the value apart from it.
      var distance = 0.0;
      for (var word = 0u; word < HEAD_WORDS; word++) {
        let output = vec2f(outputs[row * HEAD_DIM + word * 2u], outputs[row * HEAD_DIM + word * 2u + 1u]);
        let apart = unpack2x16float(tile[token * TOKEN_STRIDE + word]) - output;
        distance += dot(apart, apart);
      }
      let probability = probabilities[row * prompt + place + token];
      sums += vec2f(probability * probability * distance, probability);
    }
  }
  parts[thread] = sums;
  // Every slice of the rows is summed.
  workgroupBarrier();
  if (thread >= count) {
    return;
  }
  for (var slice = 1u; slice < SLICES; slice++) {
    sums += parts[slice * TILE_TOKENS + token];
  }
  sensitivities[(first + token) * KV_HEADS + block.y] = sums.x;
  masses[(first + token) * KV_HEADS + block.y] = sums.y;
}
