// basis_ritz: small = basis^T * product, symmetrised: the matrix seen from inside the subspace.
// Stage basis of scheme shard for llama-3.1-8b. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, pca(rank 192, bits 4/4/4, group 64, i8 basis)
// values: hadamard, channelMax, vq(4 channels, 256 entries)
// stream: lloydMax(8 bits); sinks 4, window 64
// tunables: tile = 16

const WIDTH = 1024u;  // KV_HEADS * HEAD_DIM
const RANK = 192u;  // components of a key
const TILE = 16u;  // rows and columns of a matrix tile

// [1024][192]
@group(0) @binding(0) var<storage, read> basis: array<f32>;
// [1024][192]
@group(0) @binding(1) var<storage, read> product: array<f32>;
// [192][192]
@group(0) @binding(2) var<storage, read_write> small: array<f32>;

// [channel][component] tiles: of basis and product, at the components of the block's rows and at those of its columns.
var<workgroup> row_basis: array<f32, TILE * TILE>;
var<workgroup> row_product: array<f32, TILE * TILE>;
var<workgroup> column_basis: array<f32, TILE * TILE>;
var<workgroup> column_product: array<f32, TILE * TILE>;

// One element of the small matrix a thread. Elements (i, j) and (j, i) add the same numbers in the same order, so the
// result is symmetric to the last bit.
@compute @workgroup_size(256)
fn basis_ritz(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let local_row = thread / TILE;
  let local_column = thread % TILE;
  var upper = 0.0;
  var lower = 0.0;
  for (var first = 0u; first < WIDTH; first += TILE) {
    let channel_row = (first + local_row) * RANK;
    row_basis[thread] = basis[channel_row + block.y * TILE + local_column];
    row_product[thread] = product[channel_row + block.y * TILE + local_column];
    column_basis[thread] = basis[channel_row + block.x * TILE + local_column];
    column_product[thread] = product[channel_row + block.x * TILE + local_column];
    // The tiles are complete before any thread reads them.
    workgroupBarrier();
    var upper_sum = 0.0;
    var lower_sum = 0.0;
    for (var k = 0u; k < TILE; k++) {
      upper_sum += row_basis[k * TILE + local_row] * column_product[k * TILE + local_column];
      lower_sum += row_product[k * TILE + local_row] * column_basis[k * TILE + local_column];
    }
    upper += upper_sum;
    lower += lower_sum;
    // Every thread has read the tiles before the next ones replace them.
    workgroupBarrier();
  }
  small[(block.y * TILE + local_row) * RANK + block.x * TILE + local_column] = (upper + lower) * 0.5;
}
