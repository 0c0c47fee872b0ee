import { uniformRandom } from '../../../dsl/random.js';
import { rotationFloats } from '../../../dsl/stages/basis.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { normalFrom, seededRandom, topEigenvectors } from '../../../runtime/reference/index.js';
import { halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { halfRounding, type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, asHalfBits, asWords, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { middleSetting, writtenParts } from './setting.js';

/** left^T * right over matrices of `rows` rows. */
function crossProduct(left: ArrayLike<number>, right: ArrayLike<number>, rows: number): Float64Array {
  const [n, m] = [left.length / rows, right.length / rows];
  const product = new Float64Array(n * m);
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < m; j++) product[i * m + j]! += left[row * n + i]! * right[row * m + j]!;
    }
  }
  return product;
}

/** left * right, where right has `inner` rows. */
function product(left: ArrayLike<number>, right: ArrayLike<number>, inner: number): Float64Array {
  const [rows, columns] = [left.length / inner, right.length / inner];
  const result = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    for (let k = 0; k < inner; k++) {
      for (let j = 0; j < columns; j++) result[i * columns + j]! += left[i * inner + k]! * right[k * columns + j]!;
    }
  }
  return result;
}

/** How far columns are from orthonormal. */
function skew(columns: ArrayLike<number>, rows: number): number {
  const width = columns.length / rows;
  const identity = Float64Array.from({ length: width * width }, (_, at) => (at % (width + 1) === 0 ? 1 : 0));
  return worstDifference(crossProduct(columns, columns, rows), identity).by;
}

const normals = (seed: number, rows: number, width: number) =>
  Float32Array.from(numbers({ kind: 'normal', seed }, rows, width));

function checkClose(what: string, actual: Float32Array, expected: Float64Array, judge: Judge): void {
  const { at, by } = worstDifference(actual, expected);
  judge.check(`${what}, entry ${at}`, by, 1e-5 * largestOf(expected));
}

export async function driveStart(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width, rank, scheme } = lowRankOf(kernels.geometry);
  const outputs = await runKernel(kernels, 'basis_start', {}, { basis: { bytes: width * rank * 4 } });
  const expected = Float64Array.from(
    { length: width * rank },
    (_, index) => uniformRandom(scheme.keys[1].seed, index) * 2 - 1,
  );
  judge.check('basis to start from', worstDifference(asFloats(outputs.basis!), expected).by, 0);
}

export async function driveMultiply(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width, rank } = lowRankOf(kernels.geometry);
  const [gram, basis] = [normals(1, width, width), normals(2, width, rank)];
  const symmetric = Float32Array.from(crossProduct(gram, gram, width));
  const contents = { gram: symmetric, basis, product: { bytes: basis.byteLength } };
  const outputs = await runKernel(kernels, 'basis_multiply', {}, contents);
  checkClose('product', asFloats(outputs.product!), product(symmetric, basis, width), judge);
}

export async function driveRitz(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width, rank } = lowRankOf(kernels.geometry);
  const [basis, multiplied] = [normals(3, width, rank), normals(4, width, rank)];
  const contents = { basis, product: multiplied, small: { bytes: rank * rank * 4 } };
  const small = asFloats((await runKernel(kernels, 'basis_ritz', {}, contents)).small!);
  const oneSided = crossProduct(basis, multiplied, width);
  const mirrored = (m: ArrayLike<number>, at: number) => m[(at % rank) * rank + Math.floor(at / rank)]!;
  checkClose(
    'small matrix',
    small,
    oneSided.map((x, at) => (x + mirrored(oneSided, at)) / 2),
    judge,
  );
  const turned = small.map((_, at) => mirrored(small, at));
  judge.check('small matrix, symmetry', worstDifference(small, turned).by, 0);
}

/** Columns as they are, some zero, equal, nearly equal, not a number, or beyond what float32 can square. */
function damagedBases(width: number, rank: number): readonly Float32Array[] {
  const plain = normals(5, width, rank);
  const damage = (change: (x: number, row: number, column: number) => number) =>
    plain.map((x, at) => change(x, Math.floor(at / rank), at % rank));
  return [
    plain,
    damage((x, row, column) => (column === 3 ? plain[row * rank]! : column === 5 ? 0 : x)),
    damage((x, row, column) => (column % 5 === 4 ? plain[row * rank]! + 3e-5 * x : x)),
    damage((x, row, column) => (column === 2 && row === 7 ? Number.NaN : column === 4 && row === 1 ? Infinity : x)),
    damage((x) => x * 2 ** 100),
    damage((x) => x * 2 ** -100),
  ];
}

/** Two passes of the fast schedule, one run of the kernel that takes any rank. */
async function orthonormal(kernels: LoadedKernels, basis: Float32Array): Promise<Float32Array> {
  if (kernels.has('basis_orthonormalize')) {
    return asFloats((await runKernel(kernels, 'basis_orthonormalize', {}, { basis })).basis!);
  }
  const { rank } = lowRankOf(kernels.geometry);
  let columns = basis;
  for (let pass = 0; pass < 2; pass++) {
    const inner = { bytes: rank * rank * 8 };
    const products = (await runKernel(kernels, 'basis_inner', {}, { basis: columns, inner })).inner!;
    const factor = (await runKernel(kernels, 'basis_factor', {}, { inner: products })).inner!;
    columns = asFloats((await runKernel(kernels, 'basis_solve', {}, { inner: factor, basis: columns })).basis!);
  }
  return columns;
}

export async function driveOrthonormalize(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { width, rank } = lowRankOf(kernels.geometry);
  for (const [index, basis] of damagedBases(width, rank).entries()) {
    const columns = await orthonormal(kernels, basis);
    judge.check(`basis ${index}, inner products`, skew(columns, width), 1e-5);
    const outside = new Worst();
    for (let column = 0; column < rank; column++) {
      const original = Float64Array.from({ length: width }, (_, row) => basis[row * rank + column]!);
      const scale = largestOf(original);
      if (!(scale > 1e-35 && scale < 1e35)) continue;
      // What the columns up to this one leave of it.
      const rest = original.map((x) => x / scale);
      for (let k = 0; k <= column; k++) {
        let along = 0;
        for (let row = 0; row < width; row++) along += (original[row]! / scale) * columns[row * rank + k]!;
        for (let row = 0; row < width; row++) rest[row]! -= along * columns[row * rank + k]!;
      }
      outside.add(largestOf(rest), () => `column ${column}`);
    }
    judge.check(`basis ${index}, outside of the span: ${outside.at}`, outside.error, 1e-5);
  }
}

async function eigenvectors(
  kernels: LoadedKernels,
  small: Float32Array,
): Promise<Readonly<Record<string, Uint8Array>>> {
  const { rank } = lowRankOf(kernels.geometry);
  const vectors = { bytes: small.byteLength };
  const scratch = { values: { bytes: rank * 4 }, order: { bytes: (rank + 1) * 4 } };
  if (!kernels.has('basis_turn')) return runKernel(kernels, 'basis_jacobi', {}, { small, vectors, ...scratch });
  const rotations = { bytes: rotationFloats(lowRankOf(kernels.geometry)) * 4 };
  const outputs = await runKernel(kernels, 'basis_jacobi', {}, { small, rotations, ...scratch });
  const turned = { rotations: outputs.rotations!, order: outputs.order!, vectors };
  return { ...outputs, ...(await runKernel(kernels, 'basis_turn', {}, turned)) };
}

export async function driveJacobi(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { rank } = lowRankOf(kernels.geometry);
  for (const rows of [0, 3, 2 * rank]) {
    const data = normals(6, rows, rank).map((x, at) => x * 0.9 ** (at % rank));
    const small = rows === 0 ? new Float32Array(rank * rank) : Float32Array.from(crossProduct(data, data, rows));
    const outputs = await eigenvectors(kernels, small);
    const [vectors, values] = [asFloats(outputs.vectors!), asFloats(outputs.values!)];
    const name = `${rows} rows`;
    judge.check(`${name}: vectors, inner products`, skew(vectors, rank), 1e-5);
    const order = [...asWords(outputs.order!).subarray(0, rank)].sort((a, b) => a - b);
    judge.check(`${name}: order is a permutation`, worstDifference(order, [...values.keys()]).by, 0);
    judge.check(`${name}: values descend`, worstDifference(values, values.slice().sort().reverse()).by, 0);
    const turned = product(small, vectors, rank);
    const stretched = Float64Array.from(vectors, (x, at) => x * values[at % rank]!);
    const bar = 1e-5 * largestOf(values);
    judge.check(`${name}: vectors, turned by the matrix`, worstDifference(turned, stretched).by, bar);
    const exact = topEigenvectors({ rows: rank, columns: rank, data: Float64Array.from(small) }, rank);
    judge.check(`${name}: values`, worstDifference(values, exact.values).by, bar);
  }
}

export async function driveStore(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  const { width, rank } = g;
  for (const factor of [1, 1e8, 0]) {
    const { layout, record, cache } = middleSetting(g, 0);
    const random = seededRandom(7);
    const basis = normals(8, width, rank).map((x) => x * factor);
    const vectors = Float32Array.from({ length: rank * rank }, () => normalFrom(random) / Math.sqrt(rank));
    const outputs = await runKernel(
      kernels,
      'basis_store',
      {},
      { sequence: record, basis, vectors, cache, columns: { bytes: width * rank * 4 } },
    );
    const columns = asFloats(outputs.columns!);
    checkClose(`columns, times ${factor}`, columns, product(basis, vectors, rank), judge);
    const [codeBytes, scaleBytes] = writtenParts(layout, outputs.cache!, ['keyBasis', 'keyBasisScales'], judge);
    const codes = new Int8Array(codeBytes!.buffer);
    const scales = halfValues(asHalfBits(scaleBytes!));
    const [scaleErrors, codeErrors] = [new Worst(), new Worst()];
    for (let r = 0; r < rank; r++) {
      const column = Float64Array.from({ length: width }, (_, row) => columns[row * rank + r]!);
      const exact = Math.min(largestOf(column) / 127, 65504);
      scaleErrors.add(Math.abs(scales[r]! - exact) / (1.01 * halfRounding(exact)), () => `component ${r}`);
      for (const [row, x] of column.entries()) {
        const quotient = scales[r]! > 0 ? Math.min(Math.max(x / scales[r]!, -127), 127) : 0;
        codeErrors.add(Math.abs(codes[row * g.rankWords * 4 + r]! - quotient), () => `channel ${row}, component ${r}`);
      }
    }
    judge.check(`basis scales, over their rounding: ${scaleErrors.at}`, scaleErrors.error, 1);
    judge.check(`basis codes, from their quotient: ${codeErrors.at}`, codeErrors.error, 0.5 + 1e-4);
  }
}
