// gram_keys: One tile of the matrix a block; only tiles on or above the diagonal are computed, both halves are written.
// Stage gram of scheme shard for qwen2.5-7b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 96, bits 4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 32, tileTokens = 16

const WIDTH = 512u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 256u;  // threads of a block
const TILE = 32u;  // rows and columns of a matrix tile
const TILE_TOKENS = 16u;  // tokens of a tile
const PER_THREAD = 4u;  // rows and columns of a tile that a thread holds, or rows of one column

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][512], before RoPE
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// [512]
@group(0) @binding(2) var<storage, read> mean: array<f32>;
// [512][512], divided by the middle tokens; zero for an empty middle
@group(0) @binding(3) var<storage, read_write> gram: array<f32>;

// Tiles of the centred keys, [token][channel]: the channels of the matrix tile's rows, and those of its columns.
var<workgroup> row_keys: array<f32, TILE_TOKENS * TILE>;
var<workgroup> column_keys: array<f32, TILE_TOKENS * TILE>;

// Zero past the last token and past the last channel.
fn centred(token: u32, channel: u32) -> f32 {
  if (token >= sequence[AT_MIDDLE_TOKENS] || channel >= WIDTH) {
    return 0.0;
  }
  return plain[token * WIDTH + channel] - mean[channel];
}

// A thread owns one column of the tile and PER_THREAD rows, THREADS / TILE apart.
@compute @workgroup_size(256)
fn gram_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first_column = block.x * TILE;
  let first_row = block.y * TILE;
  // The matrix is symmetric: blocks below the diagonal leave their tile to the block above it.
  if (first_column < first_row) {
    return;
  }
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  let column = thread % TILE;
  let row = thread / TILE;
  var sums = array<f32, PER_THREAD>();
  for (var first_token = 0u; first_token < middle_tokens; first_token += TILE_TOKENS) {
    for (var i = thread; i < TILE_TOKENS * TILE; i += THREADS) {
      let token = first_token + i / TILE;
      row_keys[i] = centred(token, first_row + i % TILE);
      column_keys[i] = centred(token, first_column + i % TILE);
    }
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    // Summed by tile first: long prompts lose less that way.
    var tile_sums = array<f32, PER_THREAD>();
    for (var token = 0u; token < TILE_TOKENS; token++) {
      let factor = column_keys[token * TILE + column];
      for (var k = 0u; k < PER_THREAD; k++) {
        tile_sums[k] += row_keys[token * TILE + row + k * (THREADS / TILE)] * factor;
      }
    }
    for (var k = 0u; k < PER_THREAD; k++) {
      sums[k] += tile_sums[k];
    }
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  for (var k = 0u; k < PER_THREAD; k++) {
    let gram_row = first_row + row + k * (THREADS / TILE);
    let gram_column = first_column + column;
    if (gram_row < WIDTH && gram_column < WIDTH) {
      let moment = sums[k] / f32(max(middle_tokens, 1u));
      gram[gram_row * WIDTH + gram_column] = moment;
      // A tile on the diagonal holds both halves already.
      if (first_column != first_row) {
        gram[gram_column * WIDTH + gram_row] = moment;
      }
    }
  }
}
