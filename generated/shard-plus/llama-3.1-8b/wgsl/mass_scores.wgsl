// mass_scores: Scores of the query tokens and a tile of decoded tokens, for all query heads of a KV head.
// Stage mass of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const HEADS = 32u;  // query heads
const GROUP_SIZE = 4u;  // query heads that share a KV head
const AT_SINK_TOKENS = 0u;  // in the record, exact tokens at the start
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_STREAM_TOKENS = 2u;  // in the record, generated tokens that left the window
const AT_WINDOW_TOKENS = 3u;  // in the record, exact tokens in the ring
const THREADS = 256u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile
const TOKEN_STRIDE = 65u;  // words from one token of a tile to the next; odd, to spread them over the banks
const SCORE_SCALE = 0.127517432;  // what q.k is multiplied with first

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [query tokens, tokens held after the last of them]
@group(0) @binding(1) var<storage, read> call: array<u32>;
// f16 [8 KV heads][tokens][128], after RoPE
@group(0) @binding(2) var<storage, read> keys: array<u32>;
// f16 [query tokens][32 heads][128], after RoPE
@group(0) @binding(3) var<storage, read> query: array<u32>;
// [32 heads][query tokens][tokens], base-2 exponents
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;

const HEAD_WORDS = HEAD_DIM / 2u;
const TILE_QUADS = TILE_TOKENS / 4u;

// Keys as they are given, two channels a word.
var<workgroup> tile: array<u32, TILE_TOKENS * TOKEN_STRIDE>;

// Tokens that the sequence holds, in all its segments.
fn held_tokens() -> u32 {
  return sequence[AT_SINK_TOKENS] + sequence[AT_MIDDLE_TOKENS] + sequence[AT_STREAM_TOKENS] + sequence[AT_WINDOW_TOKENS];
}

// The exponent of a token that is not seen: below every other, and finite, as WGSL has no infinity.
const MASKED = -1e30;

// Scores of a tile from the products of queries and keys, in base-2 exponents; MASKED past `count` tokens.
fn exponents(products: vec4f, q: u32, count: u32) -> vec4f {
  let all = SCORE_SCALE * products;
  return select(vec4f(MASKED), all, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// One tile of tokens of one KV head a block: its keys are staged once for every query token of every head. Scores of
// tokens that a query does not see are written too, and left out when the row is summed. A thread meets one query with
// four neighbouring tokens.
@compute @workgroup_size(256)
fn mass_scores(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let tokens = held_tokens();
  let queries = call[0];
  let first = block.x * TILE_TOKENS;
  if (first >= tokens) {
    return;
  }
  let count = min(TILE_TOKENS, tokens - first);
  let source = (block.y * tokens + first) * HEAD_WORDS;
  for (var i = thread; i < TILE_TOKENS * HEAD_WORDS; i += THREADS) {
    // Zeros past the last token.
    var word = 0u;
    if (i < count * HEAD_WORDS) {
      word = keys[source + i];
    }
    tile[i / HEAD_WORDS * TOKEN_STRIDE + i % HEAD_WORDS] = word;
  }
  // The keys are staged.
  workgroupBarrier();
  for (var i = thread; i < GROUP_SIZE * queries * TILE_QUADS; i += THREADS) {
    let quad = i % TILE_QUADS;
    let head = block.y * GROUP_SIZE + i / TILE_QUADS / queries;
    let index = i / TILE_QUADS % queries;
    let place = (index * HEADS + head) * HEAD_WORDS;
    var sums = vec4f();
    for (var word = 0u; word < HEAD_WORDS; word++) {
      let a = unpack2x16float(query[place + word]);
      let at = quad * 4u * TOKEN_STRIDE + word;
      sums += vec4f(
        dot(a, unpack2x16float(tile[at])),
        dot(a, unpack2x16float(tile[at + TOKEN_STRIDE])),
        dot(a, unpack2x16float(tile[at + 2u * TOKEN_STRIDE])),
        dot(a, unpack2x16float(tile[at + 3u * TOKEN_STRIDE])),
      );
    }
    let all = exponents(sums, quad, count);
    let row = (head * queries + index) * tokens + first;
    for (var token = quad * 4u; token < min(quad * 4u + 4u, count); token++) {
      scores[row + token] = all[token % 4u];
    }
  }
}
