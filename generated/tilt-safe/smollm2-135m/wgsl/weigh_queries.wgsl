// weigh_queries: Sums of squares of every pair, over the observed queries of all query heads of the KV head.
// Stage weigh of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const PAIRS = 32u;  // pairs of channels of a head; those past the rotary ones have angle zero
const GROUP_SIZE = 3u;  // query heads that share a KV head
const AT_QUERY_TOKENS = 9u;  // in the record, queries that came with the prompt, of its last tokens
const OBSERVED_QUERIES = 4294967295u;  // queries that are observed, at most: the last ones given

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// f16 [9 heads][query tokens][64], the last of the prompt, after RoPE
@group(0) @binding(1) var<storage, read> queries: array<u32>;
// [3 KV heads][32 pairs]
@group(0) @binding(2) var<storage, read_write> squares: array<f32>;

// dsl/codecs/unrope.ts:42 firstOfPair, rotated = 32, pairs = 32, interleaved = 0
// The first channel of a pair.
fn first_of_pair_32_32_0(pair: u32) -> u32 {
  return pair;
}

// dsl/codecs/unrope.ts:58 secondOfPair, rotated = 32, pairs = 32, interleaved = 0
// The second channel of a pair.
fn second_of_pair_32_32_0(pair: u32) -> u32 {
  return pair + 32u;
}

fn query_at(i: u32) -> f32 {
  return unpack2x16float(queries[i / 2u])[i % 2u];
}

// One KV head a block, one pair a thread, over all query heads of the group.
@compute @workgroup_size(32)
fn weigh_queries(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let given = sequence[AT_QUERY_TOKENS];
  let observed = min(given, OBSERVED_QUERIES);
  if (thread >= PAIRS) {
    return;
  }
  let low = first_of_pair_32_32_0(thread);
  let high = second_of_pair_32_32_0(thread);
  var sum = 0.0;
  for (var member = 0u; member < GROUP_SIZE; member++) {
    let head = block.x * GROUP_SIZE + member;
    // The observed queries are the last of those that were given.
    for (var token = given - observed; token < given; token++) {
      let source = (head * given + token) * HEAD_DIM;
      let pair = vec2f(query_at(source + low), query_at(source + high));
      sum += dot(pair, pair);
    }
  }
  squares[block.x * PAIRS + thread] = sum;
}
