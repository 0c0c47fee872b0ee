// basis_jacobi: Eigenvectors of every matrix by cyclic Jacobi rotations, eigenvalues descending; a KV head a block.
// Stage fit of scheme tilt-fast for smollm2-135m. WGSL, without shader-f16, without subgroups. Written by kvforge; edit the template, not this file.
// keys:   unrope, tileRotation(64), transformCode(1.5 bits a channel, 8 components a width, steps of 512 positions, i8 basis)
// values: hadamard, perToken(uniformNormal, 2 bits; a scale for a head), gain
// stream: lloydMax(8 bits); sinks 4, window 64

const THREADS = 256u;  // threads of a block
const MAX_SWEEPS = 12u;  // rounds of Jacobi rotations, at most
const RANK = 64u;  // rows and columns of a matrix whose eigenvectors are found

// [3 KV heads][64][64], destroyed
@group(0) @binding(0) var<storage, read_write> small: array<f32>;
// [3 KV heads][64][64], eigenvectors in columns, in the order of the values
@group(0) @binding(1) var<storage, read_write> vectors: array<f32>;
// [3 KV heads][64], descending
@group(0) @binding(2) var<storage, read_write> values: array<f32>;
// [3 KV heads][64], scratch of the sort
@group(0) @binding(3) var<storage, read_write> order: array<u32>;

// dsl/codecs/jacobi.ts:7 jacobiRotation
// Cosine and sine of the rotation that zeroes the off-diagonal entry of a symmetric 2 x 2 matrix [[app, apq], [apq, aqq]], the smaller of the two angles (Golub and Van Loan, section 8.5.2).
fn jacobi_rotation(app: f32, aqq: f32, apq: f32) -> vec2f {
  var cosine: f32 = 1.0;
  var sine: f32 = 0.0;
  if (abs(apq) > 1.0e-37) {
    let tau: f32 = (aqq - app) / (2.0 * apq);
    var tangent: f32 = 0.0;
    if (abs(tau) < 1000000000.0) {
      tangent = select(1.0, -1.0, tau < 0.0) / (abs(tau) + sqrt(1.0 + tau * tau));
    }
    cosine = 1.0 / sqrt(1.0 + tangent * tangent);
    sine = tangent * cosine;
  }
  return vec2f(cosine, sine);
}

const PAIR_COUNT = RANK / 2u;

// Of every rotation of a step: (cosine, sine), and the two indices it turns.
var<workgroup> rotations: array<vec2f, PAIR_COUNT>;
var<workgroup> turned: array<vec2u, PAIR_COUNT>;

var<private> matrix: u32;  // of the block, where it begins
var<private> column: u32;  // and its eigenvalues

var<workgroup> partial: array<f32, THREADS>;

// Largest of one value a thread. Every thread must call it and gets the result.
fn block_max(thread: u32, value: f32) -> f32 {
  partial[thread] = value;
  for (var count = THREADS; count > 1u; count = (count + 1u) / 2u) {
    // A round reads what other threads wrote in the round before.
    workgroupBarrier();
    let pairs = count / 2u;
    if (thread < pairs) {
      partial[thread] = max(partial[thread], partial[thread + count - pairs]);
    }
  }
  // Waits for the last round, and keeps `partial` until every thread has read it.
  return workgroupUniformLoad(&partial[0]);
}

// Makes one phase's writes of `small`, `vectors` and `order` visible to the whole block before the next phase.
fn finish_phase() {
  storageBarrier();
  workgroupBarrier();
}

// Whether some off-diagonal entry still matters, beside its two diagonal entries and beside the largest of all.
fn is_coupled(thread: u32) -> bool {
  var diagonal = 0.0;
  for (var i = thread; i < RANK; i += THREADS) {
    diagonal = max(diagonal, abs(small[matrix + i * RANK + i]));
  }
  diagonal = block_max(thread, diagonal);
  var excess = 0.0;
  for (var i = thread; i < RANK * RANK; i += THREADS) {
    let row = i / RANK;
    let column = i % RANK;
    if (row < column) {
      let scale = sqrt(abs(small[matrix + row * RANK + row])) * sqrt(abs(small[matrix + column * RANK + column]));
      excess = max(excess, abs(small[matrix + i]) - 1e-6 * scale);
    }
  }
  return block_max(thread, excess) > 1e-8 * diagonal;
}

// The angles of a step's rotations. Circle method: the last index stays, the others move on by one a step, so that
// RANK - 1 steps (a sweep) pair every two indices once; the pairs of a step are disjoint.
fn choose_rotations(step: u32, thread: u32) {
  for (var i = thread; i < PAIR_COUNT; i += THREADS) {
    let a = select((step + i) % (RANK - 1u), RANK - 1u, i == 0u);
    let b = (step + RANK - 1u - i) % (RANK - 1u);
    let p = min(a, b);
    let q = max(a, b);
    turned[i] = vec2u(p, q);
    rotations[i] = jacobi_rotation(small[matrix + p * RANK + p], small[matrix + q * RANK + q], small[matrix + p * RANK + q]);
  }
}

// Rows of pair i and columns of pair j meet in four entries that no other thread touches: both rotations at once.
fn rotate_matrix(thread: u32) {
  for (var block_index = thread; block_index < PAIR_COUNT * PAIR_COUNT; block_index += THREADS) {
    let i = block_index / PAIR_COUNT;
    let j = block_index % PAIR_COUNT;
    let left = rotations[i];
    let right = rotations[j];
    // The entries of rows p and q of pair i, each at the columns p and q of pair j.
    let at_p = turned[i].x * RANK + turned[j];
    let at_q = turned[i].y * RANK + turned[j];
    let row_p = vec2f(small[matrix + at_p.x], small[matrix + at_p.y]);
    let row_q = vec2f(small[matrix + at_q.x], small[matrix + at_q.y]);
    if (i == j) {
      // What the rotation was chosen for: the off-diagonal entry becomes zero exactly.
      if (left.y != 0.0) {
        let shift = left.y / left.x * row_p.y;
        small[matrix + at_p.x] = row_p.x - shift;
        small[matrix + at_p.y] = 0.0;
        small[matrix + at_q.x] = 0.0;
        small[matrix + at_q.y] = row_q.y + shift;
      }
      continue;
    }
    let turned_p = left.x * row_p - left.y * row_q;
    let turned_q = left.y * row_p + left.x * row_q;
    small[matrix + at_p.x] = right.x * turned_p.x - right.y * turned_p.y;
    small[matrix + at_p.y] = right.y * turned_p.x + right.x * turned_p.y;
    small[matrix + at_q.x] = right.x * turned_q.x - right.y * turned_q.y;
    small[matrix + at_q.y] = right.y * turned_q.x + right.x * turned_q.y;
  }
}

fn rotate_vectors(thread: u32) {
  for (var i = thread; i < RANK * PAIR_COUNT; i += THREADS) {
    let rotation = rotations[i % PAIR_COUNT];
    let at = (i / PAIR_COUNT) * RANK + turned[i % PAIR_COUNT];
    let p = vectors[matrix + at.x];
    let q = vectors[matrix + at.y];
    vectors[matrix + at.x] = rotation.x * p - rotation.y * q;
    vectors[matrix + at.y] = rotation.y * p + rotation.x * q;
  }
}

// Rounding lets the lengths drift over many rotations: makes them one again, one eigenvector a thread.
fn normalize_vectors(thread: u32) {
  for (var column = thread; column < RANK; column += THREADS) {
    var sum = 0.0;
    for (var row = 0u; row < RANK; row++) {
      let entry = vectors[matrix + row * RANK + column];
      sum += entry * entry;
    }
    let size = sqrt(sum);
    for (var row = 0u; row < RANK; row++) {
      vectors[matrix + row * RANK + column] /= size;
    }
  }
}

// Writes the eigenvalues in descending order; the place of each is the number of those before it, the lower index
// first among equals.
fn sort_values(thread: u32) {
  for (var i = thread; i < RANK; i += THREADS) {
    let value = small[matrix + i * RANK + i];
    var place = 0u;
    for (var j = 0u; j < RANK; j++) {
      let other = small[matrix + j * RANK + j];
      if (other > value || (other == value && j < i)) {
        place++;
      }
    }
    order[column + place] = i;
    values[column + place] = value;
  }
}

// One block. Parallel cyclic Jacobi: every step turns RANK / 2 disjoint pairs at once. RANK is even.
@compute @workgroup_size(256)
fn basis_jacobi(
  @builtin(workgroup_id) block: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  matrix = block.x * RANK * RANK;
  column = block.x * RANK;
  for (var i = thread; i < RANK * RANK; i += THREADS) {
    vectors[matrix + i] = select(0.0, 1.0, i / RANK == i % RANK);
  }
  finish_phase();
  for (var sweep = 0u; sweep < MAX_SWEEPS; sweep++) {
    if (!is_coupled(thread)) {
      break;
    }
    for (var step = 0u; step < RANK - 1u; step++) {
      choose_rotations(step, thread);
      // The angles are known before the entries they come from change.
      finish_phase();
      rotate_matrix(thread);
      rotate_vectors(thread);
      finish_phase();
    }
  }
  normalize_vectors(thread);
  sort_values(thread);
  finish_phase();
  // The small matrix is spent: the unsorted eigenvectors move to their places by way of it.
  for (var i = thread; i < RANK * RANK; i += THREADS) {
    small[matrix + i] = vectors[matrix + i];
  }
  finish_phase();
  for (var i = thread; i < RANK * RANK; i += THREADS) {
    vectors[matrix + i] = small[matrix + (i / RANK) * RANK + order[column + i % RANK]];
  }
}
