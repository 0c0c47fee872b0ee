// tilt_gram: Second moments of every KV head, a tile of the matrix a block.
// Stage fit of scheme tilt-safe for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(2 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(asymmetric, 3 bits; a scale for a head)
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const THREADS = 256u;  // threads of a block
const MATRIX_TILE = 32u;  // rows and columns of a matrix tile
const TILE_TOKENS = 16u;  // tokens of a tile
const PER_THREAD = 4u;  // rows and columns of a tile that a thread holds, or rows of one column

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], tile-rotated and weighted
@group(0) @binding(1) var<storage, read> turned: array<f32>;
// [3 KV heads][64][64], second moments
@group(0) @binding(2) var<storage, read_write> small: array<f32>;

// Tiles of one KV head's keys, [token][channel]: the channels of the matrix tile's rows, and those of its columns.
var<workgroup> row_keys: array<f32, TILE_TOKENS * MATRIX_TILE>;
var<workgroup> column_keys: array<f32, TILE_TOKENS * MATRIX_TILE>;

// Zero past the last token and past the last channel.
fn key_of(token: u32, head: u32, channel: u32) -> f32 {
  if (token >= sequence[AT_MIDDLE_TOKENS] || channel >= HEAD_DIM) {
    return 0.0;
  }
  return turned[token * WIDTH + head * HEAD_DIM + channel];
}

// A thread owns one column of the tile and PER_THREAD rows, THREADS / MATRIX_TILE apart. The matrix is symmetric to the
// bit, as both halves add the same products in the same order.
@compute @workgroup_size(256)
fn tilt_gram(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let first_column = block.x * MATRIX_TILE;
  let first_row = block.y * MATRIX_TILE;
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  let column = thread % MATRIX_TILE;
  let row = thread / MATRIX_TILE;
  var sums = array<f32, PER_THREAD>();
  for (var first_token = 0u; first_token < middle_tokens; first_token += TILE_TOKENS) {
    for (var i = thread; i < TILE_TOKENS * MATRIX_TILE; i += THREADS) {
      let token = first_token + i / MATRIX_TILE;
      row_keys[i] = key_of(token, block.z, first_row + i % MATRIX_TILE);
      column_keys[i] = key_of(token, block.z, first_column + i % MATRIX_TILE);
    }
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    // Summed by tile first: long prompts lose less that way.
    var tile_sums = array<f32, PER_THREAD>();
    for (var token = 0u; token < TILE_TOKENS; token++) {
      let factor = column_keys[token * MATRIX_TILE + column];
      for (var k = 0u; k < PER_THREAD; k++) {
        tile_sums[k] += row_keys[token * MATRIX_TILE + row + k * (THREADS / MATRIX_TILE)] * factor;
      }
    }
    for (var k = 0u; k < PER_THREAD; k++) {
      sums[k] += tile_sums[k];
    }
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  for (var k = 0u; k < PER_THREAD; k++) {
    let matrix_row = first_row + row + k * (THREADS / MATRIX_TILE);
    let matrix_column = first_column + column;
    if (matrix_row < HEAD_DIM && matrix_column < HEAD_DIM) {
      small[(block.z * HEAD_DIM + matrix_row) * HEAD_DIM + matrix_column] = sums[k] / f32(max(middle_tokens, 1u));
    }
  }
}
