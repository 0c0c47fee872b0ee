// attend_fp16: One work item a block: a KV head of a sequence over its share of the tokens that a query sees, for all query heads of the group.
// Stage attendFp16 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const HEADS = 32u;  // query heads
const KV_HEADS = 8u;  // KV heads
const GROUP_SIZE = 4u;  // query heads that share a KV head
const THREADS = 64u;  // threads of a block
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 528u;  // numbers of one partial result
const RECORD_WORDS = 3u;  // words of a sequence record
const AT_TOKENS = 0u;  // in the record, tokens that the sequence holds
const AT_ROOM = 1u;  // in the record, tokens that the sequence has room for
const AT_SLIDING_WINDOW = 2u;  // in the record, tokens that a query sees, its own included; 0 for all
const CHUNK_UNIT = 16u;  // a split gets a multiple of so many tokens
const SCORE_SCALE = 0.127517432;  // what q.k is multiplied with first
const TILE_TOKENS = 32u;  // tokens of a tile
const TOKEN_STRIDE = 65u;  // words from one token of a tile to the next; odd, to spread them over the banks

// [sequences][tokens, room, sliding window or 0]
@group(0) @binding(0) var<storage, read> sequences: array<u32>;
// [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(1) var<storage, read> work: array<u32>;
// f16 [sequences][8 KV heads][tokens that there is room for][128], after RoPE
@group(0) @binding(2) var<storage, read> keys: array<u32>;
// f16 [sequences][8 KV heads][tokens that there is room for][128]
@group(0) @binding(3) var<storage, read> values: array<u32>;
// f16 [query rows][32 heads][128], after RoPE
@group(0) @binding(4) var<storage, read> query: array<u32>;
// [work items][4 query heads][128 output, maximum, weight sum, 2 unused]
@group(0) @binding(5) var<storage, read_write> partials: array<f32>;

// Tokens come in tiles. The keys of a tile meet the queries in workgroup memory, two channels in a word as they are
// stored; then every thread owns two channels of the output and keeps them in registers, with the running softmax of
// every query head.

const ROW_WORDS = HEAD_DIM / 2u;
const TILE_QUADS = TILE_TOKENS / 4u;
const SCORE_QUADS = GROUP_SIZE * TILE_QUADS;
const PARTIAL_ROW = HEAD_DIM + 4u;  // output, then maximum and weight sum, then two that are not used

var<workgroup> key_tile: array<u32, TILE_TOKENS * TOKEN_STRIDE>;
var<workgroup> query_rows: array<u32, GROUP_SIZE * ROW_WORDS>;
var<workgroup> scores: array<vec4f, SCORE_QUADS>;  // [head][four tokens]

// The exponent of a token that is not seen: below every other, and finite, as WGSL has no infinity.
const MASKED = -1e30;

// One block's work: a KV head of a sequence, for one query row, over one of the splits of the tokens that the query sees.
struct WorkItem {
  sequence: u32,
  kv_head: u32,
  row: u32,
  after: u32,
  split: u32,
  splits: u32,
}

fn work_item(item: u32) -> WorkItem {
  let first = item * WORK_ITEM_WORDS;
  return WorkItem(
    work[first],
    work[first + 1u],
    work[first + 2u],
    work[first + 3u],
    work[first + 4u],
    work[first + 5u],
  );
}

// Tokens from `begin` up to `end`, counted from the first token of the sequence.
struct TokenRange {
  begin: u32,
  end: u32,
}

// Tokens lie in the order of positions: a query sees none of the `after` last ones, and with a sliding window only the
// nearest of the others. The splits share these.
fn share_of(own: WorkItem, tokens: u32) -> TokenRange {
  let visible_end = tokens - min(own.after, tokens);
  let sliding = sequences[own.sequence * RECORD_WORDS + AT_SLIDING_WINDOW];
  let visible = select(min(sliding, visible_end), visible_end, sliding == 0u);
  let chunk = ((visible + own.splits - 1u) / own.splits + CHUNK_UNIT - 1u) / CHUNK_UNIT * CHUNK_UNIT;
  let begin = visible_end - visible + min(own.split * chunk, visible);
  return TokenRange(begin, min(begin + chunk, visible_end));
}

// Scores of a tile from the products of queries and keys, in base-2 exponents; MASKED past `count` tokens.
fn exponents(products: vec4f, q: u32, count: u32) -> vec4f {
  let all = SCORE_SCALE * products;
  return select(vec4f(MASKED), all, vec4u(q * 4u) + vec4u(0u, 1u, 2u, 3u) < vec4u(count));
}

// The product of a query head with a key of the tile.
fn product(head: u32, token: u32) -> f32 {
  var sum = 0.0;
  for (var word = 0u; word < ROW_WORDS; word++) {
    let query_pair = unpack2x16float(query_rows[head * ROW_WORDS + word]);
    sum += dot(query_pair, unpack2x16float(key_tile[token * TOKEN_STRIDE + word]));
  }
  return sum;
}

@compute @workgroup_size(64)
fn attend_fp16(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  let record = own.sequence * RECORD_WORDS;
  let share = share_of(own, sequences[record + AT_TOKENS]);
  let cached = (own.sequence * KV_HEADS + own.kv_head) * sequences[record + AT_ROOM] * ROW_WORDS;
  let word = min(thread, ROW_WORDS - 1u);  // of the output; idle threads repeat the last one, and store nothing
  let owner = thread < ROW_WORDS;

  let query_base = (own.row * HEADS + own.kv_head * GROUP_SIZE) * ROW_WORDS;
  for (var i = thread; i < GROUP_SIZE * ROW_WORDS; i += THREADS) {
    query_rows[i] = query[query_base + i];
  }
  var accumulated: array<vec2f, GROUP_SIZE>;
  var maxima: array<f32, GROUP_SIZE>;
  var weight_sums: array<f32, GROUP_SIZE>;
  for (var h = 0u; h < GROUP_SIZE; h++) {
    maxima[h] = MASKED;
  }

  for (var first = share.begin; first < share.end; first += TILE_TOKENS) {
    let count = min(TILE_TOKENS, share.end - first);
    let base = cached + first * ROW_WORDS;
    for (var i = thread; i < count * ROW_WORDS; i += THREADS) {
      key_tile[i / ROW_WORDS * TOKEN_STRIDE + i % ROW_WORDS] = keys[base + i];
    }
    workgroupBarrier();  // query and keys are complete, and the scores of the tile before have been read
    for (var i = thread; i < SCORE_QUADS; i += THREADS) {
      let head = i / TILE_QUADS;
      let token = i % TILE_QUADS * 4u;
      let products = vec4f(
        product(head, token),
        product(head, token + 1u),
        product(head, token + 2u),
        product(head, token + 3u),
      );
      scores[i] = exponents(products, i % TILE_QUADS, count);
    }
    workgroupBarrier();  // scores are complete, and the keys have been read
    var low = array<vec4f, TILE_QUADS>();  // of the two channels, by tokens; zero past the end: nothing is stored there
    var high = array<vec4f, TILE_QUADS>();
    for (var t = 0u; t < count; t++) {
      let two = unpack2x16float(values[base + t * ROW_WORDS + word]);
      low[t / 4u][t % 4u] = two.x;
      high[t / 4u][t % 4u] = two.y;
    }
    for (var h = 0u; h < GROUP_SIZE; h++) {
      var top = maxima[h];
      for (var q = 0u; q < TILE_QUADS; q++) {
        let s = scores[h * TILE_QUADS + q];
        top = max(top, max(max(s.x, s.y), max(s.z, s.w)));
      }
      let shrink = exp2(maxima[h] - top);
      var weight_sum = weight_sums[h] * shrink;
      var sum = accumulated[h] * shrink;
      for (var q = 0u; q < TILE_QUADS; q++) {
        let weights = exp2(scores[h * TILE_QUADS + q] - top);
        weight_sum += dot(weights, vec4f(1.0));
        sum += vec2f(dot(weights, low[q]), dot(weights, high[q]));
      }
      maxima[h] = top;
      weight_sums[h] = weight_sum;
      accumulated[h] = sum;
    }
  }

  for (var h = 0u; h < GROUP_SIZE; h++) {
    let row = item * PARTIAL_WORDS + h * PARTIAL_ROW;
    if (owner) {
      partials[row + word * 2u] = accumulated[h].x;
      partials[row + word * 2u + 1u] = accumulated[h].y;
    }
    if (thread == 0u) {
      partials[row + HEAD_DIM] = maxima[h];
      partials[row + HEAD_DIM + 1u] = weight_sums[h];
    }
  }
}
