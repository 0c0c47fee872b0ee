import type { LowRankGeometry } from '../../dsl/geometry.js';
import type { CentredKeys, KeyEvidence } from './checkKeys.js';
import { halfRounding, type Judge, Worst } from './judge.js';

/** Components that share a width, and how their codes lie about zero. */
interface CodedGroup {
  readonly firstComponent: number;
  readonly components: number;
  readonly bits: number;
  /** Largest magnitude of a quotient that still has a code. */
  readonly limit: number;
}

function codedGroups(g: LowRankGeometry, groupBits: readonly number[] | undefined): readonly CodedGroup[] {
  if (groupBits === undefined) return g.keyGroups.map((group) => ({ ...group, limit: 2 ** (group.bits - 1) - 1 }));
  return groupBits.map((bits, group) => ({ firstComponent: group * 16, components: 16, bits, limit: 2 ** (bits - 1) }));
}

/** Holds the scales and the codes of the coefficients to the basis, the mean and the weights that the kernels had. */
export function checkCoefficients(
  g: LowRankGeometry,
  { middle, columns }: KeyEvidence,
  centred: CentredKeys,
  judge: Judge,
): void {
  const { width, rank } = g;
  const exact = new Float64Array(centred.rows * rank);
  // Columns have length one: what is lost of the whole key's length is lost in every component.
  const { slack } = centred;
  for (let token = 0; token < centred.rows; token++) {
    for (let i = 0; i < width; i++) {
      const at = token * width + i;
      for (let r = 0; r < rank; r++) exact[token * rank + r]! += centred.data[at]! * columns[i * rank + r]!;
    }
  }
  const most = slack.reduce((a, b) => Math.max(a, b), 0);
  const scales = new Worst();
  const codes = new Worst();
  for (const { firstComponent, components, bits, limit } of codedGroups(g, middle.groupBits)) {
    for (let r = firstComponent; r < firstComponent + components; r++) {
      const scale = middle.coefficientScales[r]!;
      if (bits === 0) {
        scales.add(scale, () => `component ${r}, which has no bits`);
        continue;
      }
      let [largest, sum] = [0, 0];
      for (let token = 0; token < centred.rows; token++) {
        const magnitude = Math.abs(exact[token * rank + r]!);
        largest = Math.max(largest, magnitude);
        sum += magnitude;
      }
      // One mid-rise bit stands for the mean magnitude.
      const meant = bits === 1 ? (2 * sum) / Math.max(1, centred.rows) : largest / limit;
      const wanted = Math.min(meant, 65504);
      const allowed = halfRounding(wanted) + (bits === 1 ? 2 * (most + 1e-6 * largest) : most / limit);
      scales.add(Math.abs(scale - wanted) / allowed, () => `component ${r}`);
      for (let token = 0; token < centred.rows; token++) {
        const quotient = scale > 0 ? Math.min(Math.max(exact[token * rank + r]! / scale, -limit), limit) : 0;
        const away = Math.abs(quotient - (middle.coefficientCodes[token * rank + r]! + middle.codeOffset));
        codes.add(scale > 0 ? away - slack[token]! / scale : away, () => `middle token ${token}, component ${r}`);
      }
    }
  }
  judge.check(`keyScales, over their rounding: ${scales.at}`, scales.error, 1);
  judge.check(`keyCodes, from their quotient: ${codes.at}`, codes.error, 0.5 + 1e-3);
}
