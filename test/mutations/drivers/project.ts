import type { SequenceLayout } from '../../../codegen/plan/layout.js';
import type { LowRankGeometry } from '../../../dsl/geometry.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { readField } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { clampToHalf, halfRounding, type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, asHalfBits, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { middleSetting, writtenParts } from './setting.js';

/** Tokens of a tile. */
const tileOf = ({ device }: LoadedKernels) => (device.target === 'cuda' ? 64 : 16);

interface Group {
  readonly bits: number;
  /** Of a token's row. */
  readonly firstBit: number;
}

/** Groups of 16 components: of the scheme, or a table such as an allocation writes, with bits to spare. */
function groupsOf(g: LowRankGeometry, allocated: readonly number[]): readonly Group[] {
  if (g.allocatedGroups === 0) return g.keyGroups.map(({ bits, firstWord }) => ({ bits, firstBit: firstWord * 32 }));
  return allocated.map((bits, group) => ({
    bits,
    firstBit: 16 * allocated.slice(0, group).reduce((sum, width) => sum + width, 0),
  }));
}

/** Fields that straddle words and single bits; a group without bits between others. */
const tables = [
  [5, 1, 3],
  [2, 0, 6],
] as const;

function storeWidths(g: LowRankGeometry, layout: SequenceLayout, groups: readonly Group[], cache: Uint8Array): void {
  if (g.allocatedGroups === 0) return;
  const words = Uint32Array.from(groups, ({ bits, firstBit }) => firstBit * 16 + bits);
  cache.set(new Uint8Array(words.buffer), layout.parts.find(({ name }) => name === 'keyWidths')!.offset);
}

/** Coefficients of tiles with a tail, and of one that is hardly begun. */
export async function driveProject(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  const allocated = g.allocatedGroups > 0;
  const TILE = tileOf(kernels);
  for (const middle of [85, 1]) {
    const { record } = middleSetting(g, middle);
    const plain = Float32Array.from(numbers({ kind: 'normal', seed: 20 }, middle, g.width));
    const mean = Float32Array.from(numbers({ kind: 'normal', seed: 21 }, 1, g.width));
    const columns = Float32Array.from(numbers({ kind: 'normal', seed: 22 }, g.width, g.rank));
    const weights = Float32Array.from({ length: g.width }, (_, i) => (g.weighted ? 1 / (1 + (i % 5)) : 1));
    const tiles = Math.ceil(middle / TILE);
    const outputs = await runKernel(
      kernels,
      'project_keys',
      { middleTokens: middle },
      {
        sequence: record,
        plain,
        mean,
        columns,
        coefficients: { bytes: middle * g.rank * 4 },
        partial_maxima: { bytes: tiles * g.rank * 4 },
        ...(g.weighted ? { weights } : {}),
        ...(allocated ? { partial_magnitudes: { bytes: tiles * g.rank * 4 } } : {}),
      },
    );
    const expected = new Float64Array(middle * g.rank);
    const largest = new Float64Array(tiles * g.rank);
    const sums = new Float64Array(tiles * g.rank);
    for (let token = 0; token < middle; token++) {
      for (let r = 0; r < g.rank; r++) {
        let sum = 0;
        for (let i = 0; i < g.width; i++) {
          sum += weights[i]! * (plain[token * g.width + i]! - mean[i]!) * columns[i * g.rank + r]!;
        }
        expected[token * g.rank + r] = sum;
        const at = Math.floor(token / TILE) * g.rank + r;
        largest[at] = Math.max(largest[at]!, Math.abs(sum));
        sums[at]! += Math.abs(sum);
      }
    }
    const check = (what: string, actual: Uint8Array, exact: Float64Array) => {
      const { at, by } = worstDifference(asFloats(actual), exact);
      judge.check(`${what} of ${middle} tokens, entry ${at}`, by, 1e-5 * largestOf(exact));
    };
    check('coefficients', outputs.coefficients!, expected);
    check('maxima', outputs.partial_maxima!, largest);
    if (allocated) check('magnitudes', outputs.partial_magnitudes!, sums);
  }
}

/** Several tiles; no token; and coefficients whose scale f16 does not hold. */
export async function driveScale(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  const allocated = g.allocatedGroups > 0;
  const TILE = tileOf(kernels);
  for (const [middle, table, factor] of [
    [165, tables[0], 1],
    [0, tables[0], 1],
    [16, tables[1], 1e7],
  ] as const) {
    const { record, layout, cache } = middleSetting(g, middle);
    const tiles = Math.ceil(middle / TILE);
    const draw = (seed: number, size: number) =>
      Float32Array.from(numbers({ kind: 'normal', seed }, tiles, g.rank), (x) => size * Math.abs(x));
    const [maxima, magnitudes] = [draw(23, factor), draw(24, 8 * factor)];
    const groups = groupsOf(g, table);
    storeWidths(g, layout, groups, cache);
    const outputs = await runKernel(
      kernels,
      'scale_keys',
      { middleTokens: middle },
      {
        sequence: record,
        partial_maxima: maxima,
        ...(allocated ? { partial_magnitudes: magnitudes } : {}),
        cache,
        scales: { bytes: g.rank * 4 },
      },
    );
    const scales = asFloats(outputs.scales!);
    const parts = ['keyScales', ...(allocated ? (['keyWidths'] as const) : [])] as const;
    const [stored] = writtenParts(layout, outputs.cache!, parts, judge);
    judge.check('scales, as stored', worstDifference(scales, halfValues(asHalfBits(stored!))).by, 0);
    const worst = new Worst();
    for (let r = 0; r < g.rank; r++) {
      const { bits } = groups[Math.floor(r / 16)]!;
      let [largest, sum] = [0, 0];
      for (let tile = 0; tile < tiles; tile++) {
        largest = Math.max(largest, maxima[tile * g.rank + r]!);
        sum += magnitudes[tile * g.rank + r]!;
      }
      const midRise = bits === 1 ? (2 * sum) / Math.max(1, middle) : (2 * largest) / 2 ** bits;
      const exact = clampToHalf(bits === 0 ? 0 : allocated ? midRise : largest / (2 ** (bits - 1) - 1));
      worst.add(Math.abs(scales[r]! - exact) / (1.01 * halfRounding(exact)), () => `component ${r}`);
    }
    judge.check(`scales of ${middle} tokens, over their rounding: ${worst.at}`, worst.error, 1);
  }
}

/** Scales that hold their coefficients, and some that are too small and clamp; two blocks of words. */
export async function drivePack(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  const allocated = g.allocatedGroups > 0;
  for (const [middle, table] of [
    [41, tables[0]],
    [3, tables[1]],
  ] as const) {
    const { record, layout, cache } = middleSetting(g, middle);
    const coefficients = Float32Array.from(numbers({ kind: 'normal', seed: 25 }, middle, g.rank));
    const groups = groupsOf(g, table);
    storeWidths(g, layout, groups, cache);
    const limitOf = (r: number) => 2 ** (groups[Math.floor(r / 16)]!.bits - 1) - (allocated ? 0 : 1);
    const scales = Float32Array.from(
      halfValues(halfBits(Float64Array.from({ length: g.rank }, (_, r) => (r % 7 === 0 ? 1 : 3) / limitOf(r)))),
    );
    const outputs = await runKernel(
      kernels,
      'pack_keys',
      { middleTokens: middle },
      { sequence: record, coefficients, scales, cache },
    );
    const parts = ['keyCodes', ...(allocated ? (['keyWidths'] as const) : [])] as const;
    const [rows] = writtenParts(layout, outputs.cache!, parts, judge);
    const [codes, spare] = [new Worst(), new Worst()];
    for (let token = 0; token < middle; token++) {
      const rowBit = token * g.keyRowWords * 32;
      let stored = 0;
      for (const [group, { bits, firstBit }] of groups.entries()) {
        stored += 16 * bits;
        for (let i = 0; i < 16 && bits > 0; i++) {
          const r = group * 16 + i;
          const field = readField(rows!, { offset: rowBit + firstBit + i * bits, width: bits });
          const code = field - 2 ** (bits - 1) + (allocated ? 0.5 : 0);
          const exact = Math.min(Math.max(coefficients[token * g.rank + r]! / scales[r]!, -limitOf(r)), limitOf(r));
          codes.add(Math.abs(code - exact), () => `token ${token}, component ${r}`);
        }
      }
      // Groups of an allocation lie side by side, and what they leave of a row is its end.
      for (let bit = stored; allocated && bit < g.keyRowWords * 32; bit++) {
        spare.add(readField(rows!, { offset: rowBit + bit, width: 1 }), () => `token ${token}, bit ${bit}`);
      }
    }
    judge.check(`key codes, from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-4);
    judge.check(`bits of no group: ${spare.at}`, spare.error, 0);
  }
}
