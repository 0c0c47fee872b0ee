// attend_fp16_merge: Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.
// Stage attendFp16 for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const HEADS = 32u;  // query heads
const GROUP_SIZE = 4u;  // query heads that share a KV head
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 528u;  // numbers of one partial result

// [work items][sequence, KV head, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(0) var<storage, read> work: array<u32>;
// [work items][4 query heads][128 output, maximum, weight sum, 2 unused]
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// [query rows][32 heads][128]
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

// One block merges one row, if its work item is the row's first; the blocks of the other splits have nothing to do.
// A thread owns one channel.

const PARTIAL_ROW = HEAD_DIM + 4u;  // output, then maximum and weight sum, then two that are not used

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

@compute @workgroup_size(128)
fn attend_fp16_merge(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  if (own.split != 0u || thread >= HEAD_DIM) {
    return;
  }
  for (var h = 0u; h < GROUP_SIZE; h++) {
    let row = item * PARTIAL_WORDS + h * PARTIAL_ROW;
    var maximum = MASKED;
    for (var part = 0u; part < own.splits; part++) {
      maximum = max(maximum, partials[row + part * PARTIAL_WORDS + HEAD_DIM]);
    }
    var sum = 0.0;
    var weight = 0.0;
    for (var part = 0u; part < own.splits; part++) {
      let first = row + part * PARTIAL_WORDS;
      let scale = exp2(partials[first + HEAD_DIM] - maximum);
      sum += partials[first + thread] * scale;
      weight += partials[first + HEAD_DIM + 1u] * scale;
    }
    // A row without tokens has no weight: it stays zero.
    let scale = select(0.0, 1.0 / max(weight, 1e-30), weight > 0.0);
    output[(own.row * HEADS + own.kv_head * GROUP_SIZE + h) * HEAD_DIM + thread] = sum * scale;
  }
}
