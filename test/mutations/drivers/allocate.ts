import type { LoadedKernels } from '../../../runtime/kernels.js';
import { allocationError, bestWidths } from '../../../runtime/reference/index.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asWords, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { middleSetting, writtenParts } from './setting.js';

/** Variances of the components, descending: of every steepness, of small keys, and of keys that are all the same. */
const spectra: readonly ((r: number) => number)[] = [
  (r) => 1 / (1 + r),
  (r) => 0.97 ** r,
  (r) => Math.exp(-r / 5),
  (r) => 1e-30 * 0.8 ** r,
  () => 1,
  (r) => (r === 0 ? 1 : 0),
  () => 0,
];

export async function driveAllocate(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  const units = g.keyRowWords * 2;
  for (const [index, spectrum] of spectra.entries()) {
    const { record, layout, cache } = middleSetting(g, 1);
    const values = Float32Array.from({ length: g.rank }, (_, r) => spectrum(r));
    const outputs = await runKernel(
      kernels,
      'allocate_bits',
      {},
      { sequence: record, values, choices: { bytes: g.allocatedGroups * (units + 1) * 4 }, cache },
    );
    const [bytes] = writtenParts(layout, outputs.cache!, ['keyWidths'], judge);
    const words = asWords(bytes!);
    const bits = Array.from(words, (word) => word % 16);
    let first = 0;
    for (const [group, word] of words.entries()) {
      judge.check(`spectrum ${index}, first bit of group ${group}`, Math.abs(Math.floor(word / 16) - first), 0);
      first += bits[group]! * 16;
    }
    judge.check(`spectrum ${index}, units spent`, first / 16, units);
    const variances = Array.from({ length: g.allocatedGroups }, (_, group) =>
      values.slice(group * 16, (group + 1) * 16).reduce((sum, value) => sum + value, 0),
    );
    const least = bestWidths(variances, units).error;
    judge.check(`spectrum ${index}, expected error`, allocationError(variances, bits), least * (1 + 1e-6));
    const wasted = bits.filter((width, group) => width > 0 && variances[group] === 0).length;
    judge.check(`spectrum ${index}, groups with bits and nothing to code`, wasted, 0);
  }
}
