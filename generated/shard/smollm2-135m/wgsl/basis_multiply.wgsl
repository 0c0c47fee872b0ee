// basis_multiply: product = gram * basis.
// Stage basis of scheme shard for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 32, bits 4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

const WIDTH = 192u;  // KV_HEADS * HEAD_DIM
const RANK = 32u;  // components of a key
const TILE = 16u;  // rows and columns of a matrix tile

// [192][192], symmetric
@group(0) @binding(0) var<storage, read> gram: array<f32>;
// [192][32]
@group(0) @binding(1) var<storage, read> basis: array<f32>;
// [192][32]
@group(0) @binding(2) var<storage, read_write> product: array<f32>;

var<workgroup> gram_tile: array<f32, TILE * TILE>;
var<workgroup> basis_tile: array<f32, TILE * TILE>;

// One element of the product a thread; both operands pass through the block in square tiles. WIDTH and RANK are
// multiples of TILE.
@compute @workgroup_size(256)
fn basis_multiply(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let local_row = thread / TILE;
  let local_column = thread % TILE;
  let row = block.y * TILE + local_row;
  let column = block.x * TILE + local_column;
  var total = 0.0;
  for (var first = 0u; first < WIDTH; first += TILE) {
    gram_tile[thread] = gram[row * WIDTH + first + local_column];
    basis_tile[thread] = basis[(first + local_row) * RANK + column];
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    var sum = 0.0;
    for (var k = 0u; k < TILE; k++) {
      sum += gram_tile[local_row * TILE + k] * basis_tile[k * TILE + local_column];
    }
    total += sum;
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  product[row * RANK + column] = total;
}
