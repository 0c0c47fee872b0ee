// value_products: Sums of y * y and of y * coded y of every channel over a tile of tokens.
// Stage unbias of scheme shard-plus for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, 768 bits a token, group 16, i8 basis, weighted by queries)
// values: hadamard, channelMax, vq(4 channels, 256 entries, unbiased)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 32

const HEAD_DIM = 128u;  // channels of a head
const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const CHANNELS = 4u;  // channels of a value vector
const ENTRIES = 256u;  // codebook entries
const VALUE_ROW_WORDS = 64u;  // words of one token's value indices, four each
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const AT_VALUE_CODES = 19u;  // in the record, first word of valueCodes: u8 [middle][256 vectors]
const AT_CODEBOOK = 20u;  // in the record, first word of codebook: f16 [256 entries][4]
const THREADS = 128u;  // threads of a block
const TILE_TOKENS = 32u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][1024], after Hadamard
@group(0) @binding(1) var<storage, read> rotated: array<f32>;
// [1024], as the codes were chosen with
@group(0) @binding(2) var<storage, read> channel_scales: array<f32>;
// all compressed parts of all sequences; offsets come from the record
@group(0) @binding(3) var<storage, read> cache: array<u32>;
// [tiles][2: squares, products with the coded value][1024]
@group(0) @binding(4) var<storage, read_write> partial_products: array<f32>;

// The codebook as it is stored, rounded to f16.
var<workgroup> entries: array<f32, ENTRIES * CHANNELS>;

// One tile of middle tokens of one KV head a block, one channel a thread.
@compute @workgroup_size(128)
fn value_products(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  for (var i = thread; i < ENTRIES * CHANNELS / 2u; i += THREADS) {
    let pair = unpack2x16float(cache[sequence[AT_CODEBOOK] + i]);
    entries[i * 2u] = pair.x;
    entries[i * 2u + 1u] = pair.y;
  }
  // The codebook is in workgroup memory.
  workgroupBarrier();
  let first = block.x * TILE_TOKENS;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  if (first >= middle_tokens || thread >= HEAD_DIM) {
    return;
  }
  let end = min(first + TILE_TOKENS, middle_tokens);
  let channel = block.y * HEAD_DIM + thread;
  let vector = channel / CHANNELS;
  let scale = channel_scales[channel];
  var squares = 0.0;
  var products = 0.0;
  for (var token = first; token < end; token++) {
    let value = rotated[token * WIDTH + channel];
    let codes = cache[sequence[AT_VALUE_CODES] + token * VALUE_ROW_WORDS + vector / 4u];
    let code = (codes >> ((vector % 4u) * 8u)) & 0xffu;
    squares += value * value;
    products += value * (entries[code * CHANNELS + channel % CHANNELS] * scale);
  }
  partial_products[block.x * 2u * WIDTH + channel] = squares;
  partial_products[(block.x * 2u + 1u) * WIDTH + channel] = products;
}
