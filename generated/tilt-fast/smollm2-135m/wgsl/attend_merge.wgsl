// attend_merge: Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.
// Stage attend of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
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

// The blocks of a row's splits share its heads: one block merges a head at a time, a thread for every channel. With more
// splits than heads the blocks that are left have nothing to do.

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

// Of as many splits as there are threads: maximum and weight sum of Hadamard space, then of the exact tokens.
var<workgroup> ends: array<vec4f, THREADS>;

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

// Maximum and weight sum of both spaces of a split; of no weight past the last one.
fn ends_of(item: u32, head: u32, seen: bool) -> vec4f {
  if (!seen) {
    return vec4f(MASKED, 0.0, MASKED, 0.0);
  }
  let at = item * PARTIAL_WORDS + head * PARTIAL_ROW + HEAD_DIM;
  let exact = at + GROUP_SIZE * PARTIAL_ROW;
  return vec4f(partials[at], partials[at + 1u], partials[exact], partials[exact + 1u]);
}

// What four splits add to the sums of Hadamard space, of exact tokens and of weights; nothing past the last split.
fn merged(i: u32, top: f32, hadamard: vec4f, exact: vec4f) -> vec3f {
  let hadamard_maxima = vec4f(ends[i].x, ends[i + 1u].x, ends[i + 2u].x, ends[i + 3u].x);
  let exact_maxima = vec4f(ends[i].z, ends[i + 1u].z, ends[i + 2u].z, ends[i + 3u].z);
  let hadamard_scales = exp2(hadamard_maxima - top);
  let exact_scales = exp2(exact_maxima - top);
  return vec3f(
    dot(hadamard_scales, hadamard),
    dot(exact_scales, exact),
    dot(hadamard_scales, vec4f(ends[i].y, ends[i + 1u].y, ends[i + 2u].y, ends[i + 3u].y))
      + dot(exact_scales, vec4f(ends[i].w, ends[i + 1u].w, ends[i + 2u].w, ends[i + 3u].w)),
  );
}

@compute @workgroup_size(64)
fn attend_merge(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let own = work_item(block.x);
  let first_item = block.x - own.split;
  let channel = min(thread, HEAD_DIM - 1u);
  for (var head = own.split; head < GROUP_SIZE; head += own.splits) {
    var maximum = MASKED;
    var sums = vec3f(0.0);  // of Hadamard space, of exact tokens, of weights
    for (var round = 0u; round < own.splits; round += THREADS) {
      let count = min(THREADS, own.splits - round);
      workgroupBarrier();  // every thread has read the ends of the splits before
      ends[thread] = ends_of(first_item + min(round + thread, own.splits - 1u), head, thread < count);
      workgroupBarrier();  // the ends are loaded
      var top = maximum;
      for (var i = 0u; i < count; i++) {
        top = max(top, max(ends[i].x, ends[i].z));
      }
      sums *= exp2(maximum - top);
      maximum = top;
      let at = head * PARTIAL_ROW + channel;
      // Eight splits at a time: all of their numbers are on their way before the first is waited for.
      for (var i = 0u; i < count; i += 8u) {
        let hadamard_low = of_splits(first_item, round + i, own.splits, at);
        let hadamard_high = of_splits(first_item, round + i + 4u, own.splits, at);
        let exact_low = of_splits(first_item, round + i, own.splits, at + GROUP_SIZE * PARTIAL_ROW);
        let exact_high = of_splits(first_item, round + i + 4u, own.splits, at + GROUP_SIZE * PARTIAL_ROW);
        sums += merged(i, top, hadamard_low, exact_low);
        sums += merged(i + 4u, top, hadamard_high, exact_high);
      }
    }
    // The other heads' rows are whatever they were.
    if (thread < HEAD_DIM) {
      head_rows[channel * GROUP_SIZE + head] = sums.x;
    }
    transform_heads(thread);
    // A row without tokens has no weight: it stays zero.
    let scale = select(0.0, 1.0 / max(sums.z, 1e-30), sums.z > 0.0);
    if (thread < HEAD_DIM) {
      let sum = head_rows[channel * GROUP_SIZE + head] + sums.y;
      output[(own.row * HEADS + own.kv_head * GROUP_SIZE + head) * HEAD_DIM + channel] = sum * scale;
    }
    workgroupBarrier();  // every thread has read the row
  }
}
