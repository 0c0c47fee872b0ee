// tilt_project: coefficients = turned * vectors, KV head by KV head.
// Stage codeKeys of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const HEAD_DIM = 64u;  // channels of a head
const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const AT_MIDDLE_TOKENS = 1u;  // in the record, compressed tokens of the prompt
const MATRIX_TILE = 16u;  // rows and columns of a matrix tile

// record of this sequence: lengths, then part offsets in words
@group(0) @binding(0) var<storage, read> sequence: array<u32>;
// [middle tokens][192], tile-rotated and weighted
@group(0) @binding(1) var<storage, read> turned: array<f32>;
// [3 KV heads][64][64], eigenvectors in columns
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
// [middle tokens][192 components]
@group(0) @binding(3) var<storage, read_write> coefficients: array<f32>;

// Tiles of the keys, [token][channel], and of the basis, [channel][component].
var<workgroup> keys: array<f32, MATRIX_TILE * MATRIX_TILE>;
var<workgroup> columns: array<f32, MATRIX_TILE * MATRIX_TILE>;

// A tile of MATRIX_TILE tokens and components of one KV head a block, one of them a thread. HEAD_DIM is a multiple of
// MATRIX_TILE.
@compute @workgroup_size(256)
fn tilt_project(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let middle_tokens = sequence[AT_MIDDLE_TOKENS];
  let local_token = thread / MATRIX_TILE;
  let local_column = thread % MATRIX_TILE;
  let token = block.x * MATRIX_TILE + local_token;
  let component = block.y * MATRIX_TILE + local_column;
  let head = block.z * HEAD_DIM;
  var total = 0.0;
  for (var first = 0u; first < HEAD_DIM; first += MATRIX_TILE) {
    // Tokens past the last one are zeros, which nobody stores.
    var key = 0.0;
    if (token < middle_tokens) {
      key = turned[token * WIDTH + head + first + local_column];
    }
    keys[thread] = key;
    columns[thread] = vectors[(head + first + local_token) * HEAD_DIM + component];
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    var sum = 0.0;
    for (var k = 0u; k < MATRIX_TILE; k++) {
      sum += keys[local_token * MATRIX_TILE + k] * columns[k * MATRIX_TILE + local_column];
    }
    total += sum;
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  if (token < middle_tokens) {
    coefficients[token * WIDTH + head + component] = total;
  }
}
