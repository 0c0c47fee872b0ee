// attend_merge: Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.
// Stage attend of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const HEADS = 9u;  // query heads
const GROUP_SIZE = 3u;  // query heads that share a KV head
const HADAMARD_BLOCK = 64u;  // channels of one Hadamard block
const HADAMARD_SCALE = 0.125;  // 1 / sqrt(HADAMARD_BLOCK)
const THREADS = 64u;  // threads of a block
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 396u;  // numbers of one partial result

// [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(0) var<storage, read> work: array<u32>;
// [work items][2: Hadamard space, exact][3 query heads][64 output, maximum, weight sum]
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// [query rows][9 heads][64]
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

// dsl/codecs/hadamard.ts:16 butterfly
// One butterfly of the unnormalised transform; the schedule scales once at the end.
fn butterfly(a: f32, b: f32) -> vec2f {
  return vec2f(a + b, a - b);
}

// One block merges one row, if its work item is the row's first; the blocks of the other splits have nothing to do.
// A thread owns one channel. Hadamard-space sums of all splits share one inverse transform.

const PARTIAL_ROW = HEAD_DIM + 2u;  // output, then maximum and weight sum

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

// Numbers of all query heads of the group, [channel][head]; each head is a vector that can be transformed as one.
var<workgroup> head_rows: array<f32, HEAD_DIM * GROUP_SIZE>;

// Hadamard transform of every head, in place. Its own inverse.
fn transform_heads(thread: u32) {
  for (var half = 1u; half < HADAMARD_BLOCK; half *= 2u) {
    workgroupBarrier();  // the rows are loaded, or the previous stage is complete
    for (var i = thread; i < PAIRS * GROUP_SIZE; i += THREADS) {
      let pair = i / GROUP_SIZE;
      let upper = (pair / half * 2u * half + pair % half) * GROUP_SIZE + i % GROUP_SIZE;
      let lower = upper + half * GROUP_SIZE;
      let turned = butterfly(head_rows[upper], head_rows[lower]);
      head_rows[upper] = turned.x;
      head_rows[lower] = turned.y;
    }
  }
  workgroupBarrier();  // the last stage is complete
  for (var i = thread; i < HEAD_DIM * GROUP_SIZE; i += THREADS) {
    head_rows[i] *= HADAMARD_SCALE;
  }
  workgroupBarrier();  // the rows are scaled
}

// Where the partial result of a work item, a space (0 Hadamard, 1 exact) and a query head begins.
fn partial_row(item: u32, space: u32, h: u32) -> u32 {
  return item * PARTIAL_WORDS + (space * GROUP_SIZE + h) * PARTIAL_ROW;
}

@compute @workgroup_size(64)
fn attend_merge(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  if (own.split != 0u) {
    return;
  }
  let channel = min(thread, HEAD_DIM - 1u);
  let owner = thread < HEAD_DIM;
  var exact: array<f32, GROUP_SIZE>;
  var weights: array<f32, GROUP_SIZE>;
  for (var h = 0u; h < GROUP_SIZE; h++) {
    var maximum = MASKED;
    for (var part = 0u; part < own.splits * 2u; part++) {
      maximum = max(maximum, partials[partial_row(item + part / 2u, part % 2u, h) + HEAD_DIM]);
    }
    var sums = vec2f(0.0);  // by space
    for (var part = 0u; part < own.splits * 2u; part++) {
      let row = partial_row(item + part / 2u, part % 2u, h);
      let scale = exp2(partials[row + HEAD_DIM] - maximum);
      let term = partials[row + channel] * scale;
      sums += select(vec2f(term, 0.0), vec2f(0.0, term), part % 2u == 1u);
      weights[h] += partials[row + HEAD_DIM + 1u] * scale;
    }
    exact[h] = sums.y;
    if (owner) {
      head_rows[channel * GROUP_SIZE + h] = sums.x;
    }
  }
  transform_heads(thread);
  if (owner) {
    for (var h = 0u; h < GROUP_SIZE; h++) {
      let sum = head_rows[channel * GROUP_SIZE + h] + exact[h];
      // A row without tokens has no weight: it stays zero.
      let scale = select(0.0, 1.0 / max(weights[h], 1e-30), weights[h] > 0.0);
      output[(own.row * HEADS + own.kv_head * GROUP_SIZE + h) * HEAD_DIM + channel] = sum * scale;
    }
  }
}
