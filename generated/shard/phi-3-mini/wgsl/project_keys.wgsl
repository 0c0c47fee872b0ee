// project_keys: coefficients = (plain - mean) * columns, and the magnitudes of every component over a tile of tokens.
// Stage project of scheme shard for phi-3-mini. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 576, bits 4/4/4/4/4/4/4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tileTokens = 16

const WIDTH = 3072u;  // KV_HEADS * HEAD_DIM
const RANK = 576u;  // components of a key
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const TILE = 16u;  // rows and columns of a matrix tile
const TILE_TOKENS = 16u;  // tokens of a tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][3072], before RoPE
@group(0) @binding(1) var<storage, read> plain: array<f32>;
// [3072]
@group(0) @binding(2) var<storage, read> mean: array<f32>;
// [3072][576]
@group(0) @binding(3) var<storage, read> columns: array<f32>;
// [middle tokens][576]
@group(0) @binding(4) var<storage, read_write> coefficients: array<f32>;
// [tiles][576]
@group(0) @binding(5) var<storage, read_write> partial_maxima: array<f32>;

// Tiles of the centred keys, [token][channel], and of the basis columns, [channel][component].
var<workgroup> centred: array<f32, TILE_TOKENS * TILE>;
var<workgroup> column_rows: array<f32, TILE * TILE>;
var<workgroup> magnitudes: array<f32, TILE_TOKENS * TILE>;

// A tile of TILE_TOKENS tokens and TILE components a block, one coefficient a thread. WIDTH and RANK are multiples of
// TILE.
@compute @workgroup_size(256)
fn project_keys(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  let local_token = thread / TILE;
  let local_column = thread % TILE;
  let token = block.y * TILE_TOKENS + local_token;
  let component = block.x * TILE + local_column;
  if (block.y * TILE_TOKENS >= middle_tokens) {
    return;
  }
  var total = 0.0;
  for (var first = 0u; first < WIDTH; first += TILE) {
    let channel = first + local_column;
    // Tokens past the last one count as the mean: their coefficients are zero.
    var key = 0.0;
    if (token < middle_tokens) {
      key = plain[token * WIDTH + channel] - mean[channel];
    }
    centred[thread] = key;
    column_rows[thread] = columns[(first + local_token) * RANK + component];
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    var sum = 0.0;
    for (var k = 0u; k < TILE; k++) {
      sum += centred[local_token * TILE + k] * column_rows[k * TILE + local_column];
    }
    total += sum;
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  if (token < middle_tokens) {
    coefficients[token * RANK + component] = total;
  }
  magnitudes[thread] = abs(total);
  // All magnitudes of the tile are there.
  workgroupBarrier();
  if (thread < TILE) {
    var largest = 0.0;
    for (var row = 0u; row < TILE_TOKENS; row++) {
      largest = max(largest, magnitudes[row * TILE + thread]);
    }
    partial_maxima[block.y * RANK + component] = largest;
  }
}
