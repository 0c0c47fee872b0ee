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
const THREADS = 192u;  // threads of a block
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
// A thread owns some (head, channel) pairs. Hadamard-space sums of all splits share one inverse transform.

const PARTIAL_ROW = HEAD_DIM + 2u;  // output, then maximum and weight sum
const OWN_PAIRS = (GROUP_SIZE * HEAD_DIM + THREADS - 1u) / THREADS;

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

// The same number of four splits from `split` on; the last split's where there are fewer.
fn of_splits(first_item: u32, split: u32, splits: u32, at: u32) -> vec4f {
  let last = splits - 1u;
  return vec4f(
    partials[(first_item + min(split, last)) * PARTIAL_WORDS + at],
    partials[(first_item + min(split + 1u, last)) * PARTIAL_WORDS + at],
    partials[(first_item + min(split + 2u, last)) * PARTIAL_WORDS + at],
    partials[(first_item + min(split + 3u, last)) * PARTIAL_WORDS + at],
  );
}

fn largest_of(v: vec4f) -> f32 {
  return max(max(v.x, v.y), max(v.z, v.w));
}

@compute @workgroup_size(192)
fn attend_merge(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let item = block.x;
  let own = work_item(item);
  if (own.split != 0u) {
    return;
  }
  var exact: array<f32, OWN_PAIRS>;
  var weights: array<f32, OWN_PAIRS>;
  for (var n = 0u; n < OWN_PAIRS; n++) {
    let i = min(thread + n * THREADS, GROUP_SIZE * HEAD_DIM - 1u);
    let channel = i % HEAD_DIM;
    let hadamard_row = i / HEAD_DIM * PARTIAL_ROW;
    let exact_row = hadamard_row + GROUP_SIZE * PARTIAL_ROW;
    var maximum = MASKED;
    var sums = vec3f(0.0);  // of Hadamard space, of exact tokens, of weights
    // Four splits at a time: all of their numbers are on their way before the first is waited for.
    for (var split = 0u; split < own.splits; split += 4u) {
      let seen = vec4u(split) + vec4u(0u, 1u, 2u, 3u) < vec4u(own.splits);
      let hadamard_maxima = select(vec4f(MASKED), of_splits(item, split, own.splits, hadamard_row + HEAD_DIM), seen);
      let exact_maxima = select(vec4f(MASKED), of_splits(item, split, own.splits, exact_row + HEAD_DIM), seen);
      let hadamard_weights = of_splits(item, split, own.splits, hadamard_row + HEAD_DIM + 1u);
      let exact_weights = of_splits(item, split, own.splits, exact_row + HEAD_DIM + 1u);
      let hadamard_terms = of_splits(item, split, own.splits, hadamard_row + channel);
      let exact_terms = of_splits(item, split, own.splits, exact_row + channel);
      let top = max(maximum, max(largest_of(hadamard_maxima), largest_of(exact_maxima)));
      let hadamard_scales = exp2(hadamard_maxima - top);
      let exact_scales = exp2(exact_maxima - top);
      sums = sums * exp2(maximum - top) + vec3f(
        dot(hadamard_scales, hadamard_terms),
        dot(exact_scales, exact_terms),
        dot(hadamard_scales, hadamard_weights) + dot(exact_scales, exact_weights),
      );
      maximum = top;
    }
    exact[n] = sums.y;
    weights[n] = sums.z;
    if (thread + n * THREADS < GROUP_SIZE * HEAD_DIM) {
      head_rows[channel * GROUP_SIZE + i / HEAD_DIM] = sums.x;
    }
  }
  transform_heads(thread);
  for (var n = 0u; n < OWN_PAIRS; n++) {
    let i = thread + n * THREADS;
    if (i < GROUP_SIZE * HEAD_DIM) {
      let sum = head_rows[i % HEAD_DIM * GROUP_SIZE + i / HEAD_DIM] + exact[n];
      // A row without tokens has no weight: it stays zero.
      let scale = select(0.0, 1.0 / max(weights[n], 1e-30), weights[n] > 0.0);
      output[(own.row * HEADS + own.kv_head * GROUP_SIZE) * HEAD_DIM + i] = sum * scale;
    }
  }
}
