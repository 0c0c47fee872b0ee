// attend_merge: Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.
// Stage attend of scheme latent-int4-hadamard for deepseek-v2-lite. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// latent: hadamard, perToken(asymmetric, 4 bits; a scale for 128 channels of 1 token)
// rotary: perToken(symmetric, 8 bits; a scale for a head of 1 token)
// stream: symmetric(8 bits); sinks 4, window 64
// tunables: tileTokens = 4

const HEADS = 16u;  // query heads
const LATENT_DIM = 512u;  // channels of a latent, the first of a token
const HEADS_PER_BLOCK = 16u;  // query heads that a block takes
const THREADS = 256u;  // threads of a block
const WORK_ITEM_WORDS = 6u;  // words of a work item
const PARTIAL_WORDS = 8224u;  // numbers of one partial result

// [work items][sequence, block of 16 heads, query row, tokens after the query, split, splits]; splits of a row are neighbours
@group(0) @binding(0) var<storage, read> work: array<u32>;
// [work items][16 query heads][512 output, maximum, weight sum]
@group(0) @binding(1) var<storage, read> partials: array<f32>;
// [query rows][16 heads][512]
@group(0) @binding(2) var<storage, read_write> output: array<f32>;

// The blocks of a row's splits share its heads: one block merges a head at a time. With more splits than heads the blocks
// that are left have nothing to do.

const PARTIAL_ROW = LATENT_DIM + 2u;  // output, then maximum and weight sum

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

@compute @workgroup_size(256)
fn attend_merge(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let own = work_item(block.x);
  let first_item = block.x - own.split;
  for (var head = own.split; head < HEADS_PER_BLOCK; head += own.splits) {
    let row = first_item * PARTIAL_WORDS + head * PARTIAL_ROW;
    var maximum = MASKED;
    for (var split = 0u; split < own.splits; split++) {
      maximum = max(maximum, partials[row + split * PARTIAL_WORDS + LATENT_DIM]);
    }
    var weight = 0.0;
    for (var split = 0u; split < own.splits; split++) {
      let partial = row + split * PARTIAL_WORDS + LATENT_DIM;
      weight += partials[partial + 1u] * exp2(partials[partial] - maximum);
    }
    // A row without tokens has no weight: it stays zero.
    let normalize = select(0.0, 1.0 / max(weight, 1e-30), weight > 0.0);
    for (var channel = thread; channel < LATENT_DIM; channel += THREADS) {
      var sum = 0.0;
      for (var split = 0u; split < own.splits; split++) {
        let partial = row + split * PARTIAL_WORDS;
        sum += partials[partial + channel] * exp2(partials[partial + LATENT_DIM] - maximum);
      }
      output[(own.row * HEADS + own.kv_head * HEADS_PER_BLOCK + head) * LATENT_DIM + channel] = sum * normalize;
    }
  }
}
