// observe_scores: Scores of the observed queries and a tile of prompt tokens, for all query heads of a KV head.
// Stage observe of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const GROUP_SIZE = 4u;  // query heads that share a KV head
const AT_PROMPT_TOKENS = 5u;  // in the record, tokens of the prompt in the input of the encode stages
const AT_QUERY_TOKENS = 9u;  // in the record, queries that came with the prompt, of its last tokens
const THREADS = 256u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile
const TOKEN_STRIDE = 65u;  // words from one token of a tile to the next; odd, to spread them over the banks
const OBSERVED_QUERIES = 32u;  // queries that are observed, at most: the last ones given
const SCORE_SCALE = 0.127517432;  // what q.k is multiplied with first

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [8 KV heads][prompt tokens][128], after RoPE
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// f16 [32 heads][query tokens][128], the last of the prompt, after RoPE
@group(0) @binding(2) var<storage, read> queries: array<u32>;
// [32 heads][observed queries][prompt tokens], base-2 exponents
@group(0) @binding(3) var<storage, read_write> scores: array<f32>;

const HEAD_WORDS = HEAD_DIM / 2u;
const TILE_QUADS = TILE_TOKENS / 4u;

// Keys as they are given, two channels a word.
var<workgroup> tile: array<u32, TILE_TOKENS * TOKEN_STRIDE>;

// The exponent of a token that is not seen: below every other, and finite, as WGSL has no infinity.
const MASKED = -1e30;

// Scores of a tile from the products of queries and keys, in base-2 exponents; MASKED past `count` tokens.
fn exponents(products: vec4f, q: u32, count: u32) -> vec4f {
  let all = SCORE_SCALE * products;
  return select(vec4f(MASKED), all, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// One tile of prompt tokens of one KV head a block: its keys are staged once for every query of every head. A thread
// meets one query with four neighbouring tokens.
@compute @workgroup_size(256)
fn observe_scores(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let prompt = sequence[AT_PROMPT_TOKENS];
  let given = sequence[AT_QUERY_TOKENS];
  let observed = min(given, OBSERVED_QUERIES);
  let first = block.x * TILE_TOKENS;
  if (first >= prompt) {
    return;
  }
  let count = min(TILE_TOKENS, prompt - first);
  let source = (block.y * prompt + first) * HEAD_WORDS;
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
  for (var i = thread; i < GROUP_SIZE * observed * TILE_QUADS; i += THREADS) {
    let quad = i % TILE_QUADS;
    let head = block.y * GROUP_SIZE + i / TILE_QUADS / observed;
    let index = i / TILE_QUADS % observed;
    // The observed queries are the last of those that were given.
    let query = (head * given + given - observed + index) * HEAD_WORDS;
    var sums = vec4f();
    for (var word = 0u; word < HEAD_WORDS; word++) {
      let a = unpack2x16float(queries[query + word]);
      let at = quad * 4u * TOKEN_STRIDE + word;
      sums += vec4f(
        dot(a, unpack2x16float(tile[at])),
        dot(a, unpack2x16float(tile[at + TOKEN_STRIDE])),
        dot(a, unpack2x16float(tile[at + 2u * TOKEN_STRIDE])),
        dot(a, unpack2x16float(tile[at + 3u * TOKEN_STRIDE])),
      );
    }
    let all = exponents(sums, quad, count);
    let row = (head * observed + index) * prompt + first;
    for (var token = quad * 4u; token < min(quad * 4u + 4u, count); token++) {
      scores[row + token] = all[token % 4u];
    }
  }
}
