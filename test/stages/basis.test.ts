import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { uniformRandom } from '../../dsl/random.js';
import { factoredPasses, rotationFloats } from '../../dsl/stages/basis.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom, topEigenvectors } from '../../runtime/reference/index.js';
import {
  halfValues,
  type Kind,
  kinds,
  largestOf,
  numbers,
  strayWrites,
  untouched,
  worstDifference,
} from '../../runtime/verify/draws.js';
import {
  asFloats,
  asHalfBits,
  asWords,
  geometry,
  makeCase,
  openDevice,
  partBytes,
  promptSetting,
  runKernel,
  targetOf,
} from './harness.js';

const RUNS = 36;

/** The whole space, a thin slice of it, and a rank at which a matrix tile and the pairing of columns are more than one. */
const cases = [
  makeCase({ heads: 1, kvHeads: 1, headDim: 16, rank: 16, bits: 4, group: 16 }),
  makeCase({ heads: 3, kvHeads: 3, headDim: 16, rank: 16, bits: 4, group: 16 }),
  makeCase({ heads: 2, kvHeads: 2, headDim: 32, rank: 48, bits: 4, group: 16 }),
];

const shared = ['basis_start', 'basis_multiply', 'basis_ritz', 'basis_jacobi', 'basis_store'] as const;

/** CUDA has two schedules: the one that is fast, and the one that takes any rank. */
const schedules = [
  {
    deviceName: 'emulator',
    schedule: 'fast',
    choice: {},
    entries: [...shared, 'basis_inner', 'basis_factor', 'basis_solve', 'basis_turn'],
  },
  {
    deviceName: 'emulator',
    schedule: 'for any rank',
    choice: { choleskyQr: 0, sharedMatrix: 0 },
    entries: [...shared, 'basis_orthonormalize'],
  },
  { deviceName: 'webgpu', schedule: 'for any rank', choice: {}, entries: [...shared, 'basis_orthonormalize'] },
] as const;

const anyKind = fc.constantFrom(...kinds);
const anySeed = fc.nat({ max: 0xffff });

/** left^T * right over matrices of `rows` rows. */
function crossProduct(left: ArrayLike<number>, right: ArrayLike<number>, rows: number): Float64Array {
  const n = left.length / rows;
  const m = right.length / rows;
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
  const rows = left.length / inner;
  const columns = right.length / inner;
  const result = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) {
    for (let k = 0; k < inner; k++) {
      for (let j = 0; j < columns; j++) result[i * columns + j]! += left[i * inner + k]! * right[k * columns + j]!;
    }
  }
  return result;
}

const identity = (n: number) => Float64Array.from({ length: n * n }, (_, at) => (at % (n + 1) === 0 ? 1 : 0));

/** How far the columns are from orthonormal. */
const skew = (columns: ArrayLike<number>, rows: number) =>
  worstDifference(crossProduct(columns, columns, rows), identity(columns.length / rows)).by;

/** A symmetric matrix with no negative eigenvalue: the second moments of drawn rows, channel i weighed by decay^i. */
function secondMoments(kind: Kind, seed: number, rows: number, width: number, decay: number): Float32Array {
  if (rows === 0) return new Float32Array(width * width);
  const data = numbers({ kind, seed }, rows, width).map((x, at) => x * decay ** (at % width));
  return Float32Array.from(crossProduct(data, data, rows), (sum) => sum / rows);
}

describe.each(schedules)('basis on $deviceName, schedule $schedule', ({ deviceName, choice, entries }) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(cases)('$name', (drawnCase) => {
    const g = geometry(drawnCase);
    const { width, rank } = g;
    const [, pca] = g.scheme.keys;
    const tall = { bytes: width * rank * 4 };
    const square = { bytes: rank * rank * 4 };
    // Of the whole stage, which has 24 rounds.
    const stageRuns = width > 50 ? 4 : 12;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      const generated = await generate(drawnCase.scheme, drawnCase.model, targetOf(device), { basis: choice });
      kernels = await LoadedKernels.load(device, generated, entries);
    });
    const run = async (entry: string, contents: Parameters<typeof runKernel>[3], output: string) =>
      asFloats((await runKernel(kernels, entry, {}, contents))[output]!);

    /** The fast schedule takes two passes to make any columns orthonormal. */
    async function orthonormalize(basis: Float32Array, times = 2): Promise<Float32Array> {
      if (kernels.has('basis_orthonormalize')) return run('basis_orthonormalize', { basis }, 'basis');
      let columns = basis;
      for (let time = 0; time < times; time++) {
        const inner = { bytes: rank * rank * 8 };
        const products = (await runKernel(kernels, 'basis_inner', {}, { basis: columns, inner })).inner!;
        const factor = (await runKernel(kernels, 'basis_factor', {}, { inner: products })).inner!;
        columns = await run('basis_solve', { inner: factor, basis: columns }, 'basis');
      }
      return columns;
    }

    async function diagonalize(small: Float32Array): Promise<Readonly<Record<string, Uint8Array>>> {
      const scratch = { values: { bytes: rank * 4 }, order: { bytes: (rank + 1) * 4 } };
      if (!kernels.has('basis_turn')) {
        return runKernel(kernels, 'basis_jacobi', {}, { small, vectors: square, ...scratch });
      }
      const rotations = { bytes: rotationFloats(g) * 4 };
      const outputs = await runKernel(kernels, 'basis_jacobi', {}, { small, rotations, ...scratch });
      const turned = { rotations: outputs.rotations!, order: outputs.order!, vectors: square };
      const { vectors } = await runKernel(kernels, 'basis_turn', {}, turned);
      return { ...outputs, vectors: vectors! };
    }

    test('starts from the seeded numbers', async () => {
      const basis = await run('basis_start', { basis: tall }, 'basis');
      expect(basis).toEqual(basis.map((_, index) => uniformRandom(pca.seed, index) * 2 - 1));
    });

    test('products agree with float64', async () => {
      await fc.assert(
        fc.asyncProperty(anyKind, anySeed, async (kind, seed) => {
          const gram = secondMoments(kind, seed, 2 * width, width, 1);
          const basis = Float32Array.from(numbers({ kind: 'normal', seed }, width, rank));
          const multiplied = await run('basis_multiply', { gram, basis, product: tall }, 'product');
          const expected = product(gram, basis, width);
          expect(worstDifference(multiplied, expected).by).toBeLessThanOrEqual(1e-5 * largestOf(expected));

          const small = await run('basis_ritz', { basis, product: multiplied, small: square }, 'small');
          const oneSided = crossProduct(basis, multiplied, width);
          const mirrored = (m: ArrayLike<number>, at: number) => m[(at % rank) * rank + Math.floor(at / rank)]!;
          const symmetrised = oneSided.map((x, at) => (x + mirrored(oneSided, at)) / 2);
          expect(worstDifference(small, symmetrised).by).toBeLessThanOrEqual(1e-5 * largestOf(symmetrised));
          expect(
            worstDifference(
              small,
              small.map((_, at) => mirrored(small, at)),
            ).by,
          ).toBe(0);
        }),
        { numRuns: RUNS },
      );
    });

    test('columns come out orthonormal, whatever they were, and span what they spanned', async () => {
      const damage = fc.constantFrom('none', 'zero', 'copy', 'nearly a copy', 'not a number', 'infinite');
      const exponent = fc.constantFrom(-100, -20, 0, 20, 100);
      await fc.assert(
        fc.asyncProperty(anyKind, anySeed, damage, exponent, async (kind, seed, how, power) => {
          const random = seededRandom(seed);
          const basis = Float32Array.from(numbers({ kind, seed }, width, rank), (x) => x * 2 ** power);
          const damaged = 1 + Math.floor(random() * (rank - 1));
          const substitute = {
            none: 0,
            zero: 0,
            copy: 0,
            'nearly a copy': 1e-7,
            'not a number': NaN,
            infinite: Infinity,
          };
          for (let row = 0; row < width && how !== 'none'; row++) {
            const kept = how === 'copy' || how === 'nearly a copy' ? basis[row * rank]! * (1 + random() * 1e-7) : 0;
            basis[row * rank + damaged] = kept + substitute[how] * (how === 'nearly a copy' ? kept : 1);
          }
          const columns = await orthonormalize(basis);
          expect(skew(columns, width)).toBeLessThanOrEqual(1e-5);

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
            expect(largestOf(rest)).toBeLessThanOrEqual(1e-5);
          }
        }),
        { numRuns: RUNS },
      );
    });

    test('Jacobi rotations diagonalise the small matrix', async () => {
      const rows = fc.constantFrom(0, 1, 5, rank, 3 * rank);
      const decay = fc.constantFrom(1, 0.9, 0.5);
      await fc.assert(
        fc.asyncProperty(anyKind, anySeed, rows, decay, async (kind, seed, count, weight) => {
          const small = secondMoments(kind, seed, count, rank, weight);
          const outputs = await diagonalize(small);
          const vectors = asFloats(outputs.vectors!);
          const values = asFloats(outputs.values!);
          expect(skew(vectors, rank)).toBeLessThanOrEqual(1e-5);
          expect([...asWords(outputs.order!).subarray(0, rank)].sort((a, b) => a - b)).toEqual([...values.keys()]);
          expect([...values]).toEqual([...values].sort((a, b) => b - a));
          const turned = product(small, vectors, rank);
          const stretched = Float64Array.from(vectors, (x, at) => x * values[at % rank]!);
          expect(worstDifference(turned, stretched).by).toBeLessThanOrEqual(1e-5 * largestOf(values));
          const exact = topEigenvectors({ rows: rank, columns: rank, data: Float64Array.from(small) }, rank);
          expect(worstDifference(values, exact.values).by).toBeLessThanOrEqual(1e-5 * largestOf(values));
        }),
        { numRuns: RUNS },
      );
    });

    test('the basis is stored as int8 with a scale a column', async () => {
      const { layout, record } = promptSetting(g, g.scheme.sinks + g.scheme.window);
      await fc.assert(
        fc.asyncProperty(anyKind, anySeed, async (kind, seed) => {
          const random = seededRandom(seed + 1);
          const basis = Float32Array.from(numbers({ kind, seed }, width, rank), (x) => x / 65504);
          const vectors = Float32Array.from({ length: rank * rank }, () => normalFrom(random) / Math.sqrt(rank));
          const outputs = await runKernel(
            kernels,
            'basis_store',
            {},
            { sequence: record, basis, vectors, cache: new Uint8Array(layout.bytes).fill(untouched), columns: tall },
          );
          const columns = asFloats(outputs.columns!);
          const expected = product(basis, vectors, rank);
          expect(worstDifference(columns, expected).by).toBeLessThanOrEqual(1e-5 * largestOf(expected));

          const cache = outputs.cache!;
          const parts = layout.parts.filter(({ name }) => name === 'keyBasis' || name === 'keyBasisScales');
          expect(strayWrites(cache, parts)).toEqual([]);
          const scales = halfValues(asHalfBits(partBytes(layout, cache, 'keyBasisScales')));
          const codes = new Int8Array(partBytes(layout, cache, 'keyBasis').buffer);
          for (let r = 0; r < rank; r++) {
            const column = Array.from({ length: width }, (_, row) => columns[row * rank + r]!);
            const exact = largestOf(column) / 127;
            expect(Math.abs(scales[r]! - exact)).toBeLessThanOrEqual(Math.max(2 ** -25, exact * 2 ** -11) * 1.001);
            for (let row = 0; row < width; row++) {
              const quotient = scales[r]! > 0 ? column[row]! / scales[r]! : 0;
              const clamped = Math.min(Math.max(quotient, -127), 127);
              expect(Math.abs(codes[row * g.rankWords * 4 + r]! - clamped)).toBeLessThanOrEqual(0.5 + 1e-4);
            }
          }
        }),
        { numRuns: RUNS },
      );
    });

    /** The whole stage, as the encoder runs it. */
    async function fitBasis(gram: Float32Array, rounds: number) {
      let basis = await run('basis_start', { basis: tall }, 'basis');
      for (let round = 1; round <= rounds; round++) {
        basis = await run('basis_multiply', { gram, basis, product: tall }, 'product');
        basis = await orthonormalize(basis, factoredPasses(round, rounds));
      }
      const multiplied = await run('basis_multiply', { gram, basis, product: tall }, 'product');
      const small = await run('basis_ritz', { basis, product: multiplied, small: square }, 'small');
      const jacobi = await diagonalize(small);
      const vectors = asFloats(jacobi.vectors!);
      const { layout, record } = promptSetting(g, g.scheme.sinks + g.scheme.window);
      const cache = { bytes: layout.bytes };
      const columns = await run('basis_store', { sequence: record, basis, vectors, cache, columns: tall }, 'columns');
      return { columns, values: asFloats(jacobi.values!) };
    }

    /** Variance along each column, q^T G q, in float64. */
    function variances(gram: Float32Array, columns: Float32Array): Float64Array {
      const turned = product(gram, columns, width);
      return Float64Array.from({ length: rank }, (_, r) => {
        let sum = 0;
        for (let row = 0; row < width; row++) sum += columns[row * rank + r]! * turned[row * rank + r]!;
        return sum;
      });
    }

    const sumOf = (values: Float64Array) => values.reduce((sum, value) => sum + value, 0);

    test('the leading subspace is found, with its variances', async () => {
      const rows = fc.constantFrom(0, 1, 7, rank, 2 * width);
      await fc.assert(
        fc.asyncProperty(anyKind, anySeed, rows, async (kind, seed, count) => {
          const gram = secondMoments(kind, seed, count, width, 0.85);
          const { columns, values } = await fitBasis(gram, pca.iterations);
          expect(skew(columns, width)).toBeLessThanOrEqual(1e-5);
          const along = variances(gram, columns);
          const exact = topEigenvectors({ rows: width, columns: width, data: Float64Array.from(gram) }, rank);
          const best = sumOf(exact.values);
          expect(sumOf(along)).toBeGreaterThanOrEqual(best * (1 - 1e-4));
          expect(sumOf(along)).toBeLessThanOrEqual(best * (1 + 1e-5));
          const largest = largestOf(exact.values);
          expect(worstDifference(values, along).by).toBeLessThanOrEqual(1e-5 * largest);
          expect(worstDifference(values, exact.values).by).toBeLessThanOrEqual(1e-4 * largest);
        }),
        { numRuns: stageRuns },
      );
    });

    test('of variance spread evenly, 24 rounds find all but a hundredth; the result repeats to the bit', async () => {
      await fc.assert(
        fc.asyncProperty(anySeed, async (seed) => {
          const gram = secondMoments('normal', seed, 4 * width, width, 1);
          const { columns, values } = await fitBasis(gram, 24);
          const exact = topEigenvectors({ rows: width, columns: width, data: Float64Array.from(gram) }, rank);
          expect(sumOf(variances(gram, columns))).toBeGreaterThanOrEqual(sumOf(exact.values) * 0.99);
          expect(await fitBasis(gram, 24)).toEqual({ columns, values });
        }),
        { numRuns: 2 },
      );
    });
  });
});
