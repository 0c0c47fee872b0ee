import type { ScalarGroups } from '../../dsl/geometry.js';
import { type Cache, type HeadTensor, type ScalarCodes, toHalf, vectorAt } from '../reference/index.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** One channel of a vector: what is left of its number beside the code, and whether that is kept by rights. */
interface Candidate {
  readonly residual: number;
  /** What float32 may lose of the residual. */
  readonly lost: number;
  /** Beyond the range whatever float32 makes of it, and in any case not within. */
  readonly isOutlier: boolean;
  readonly mayBeOutlier: boolean;
}

/** Of sums and products with the offset and the scale, over their magnitudes. */
const rounding = 2e-7;

/**
 * Holds the outliers of a prompt to the numbers and to the codes that were stored: each is beyond the range and its residual
 * what is left, the largest come first, none that is larger was dropped, and the count says how many were.
 */
export function checkOutliers(
  groups: ScalarGroups,
  coded: ScalarCodes,
  name: keyof Cache,
  { numbers, slack, clamped }: Record<'numbers' | 'slack', HeadTensor> & { readonly clamped: number },
  judge: Judge,
): void {
  const { cap, channels, residuals } = coded.outliers!;
  const { heads, tokens } = numbers;
  const worst = { kept: new Worst(), residual: new Worst(), order: new Worst(), dropped: new Worst() };
  let [fewest, most] = [0, 0];
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const vector = { token, head, heads };
      const candidates = candidatesOf(
        groups,
        coded,
        vectorAt(numbers, head, token),
        vectorAt(slack, head, token),
        vector,
      );
      const place = (channel: number) => `KV head ${head}, middle token ${token}, channel ${channel}`;
      const first = (token * heads + head) * cap;
      const kept = new Set<number>();
      let least = Number.POSITIVE_INFINITY;
      for (let i = first; i < first + cap; i++) {
        const [channel, stored] = [channels[i]!, residuals[i]!];
        if (channel === 0 && stored === 0) {
          least = 0;
          continue;
        }
        const candidate = candidates[channel];
        const isRight = candidate?.mayBeOutlier === true && !kept.has(channel);
        worst.kept.add(isRight ? 0 : 1, () => place(channel));
        kept.add(channel);
        if (!candidate) continue;
        const { residual, lost } = candidate;
        const away = Math.abs(stored - toHalf(residual)) - lost - 2 * halfRounding(residual);
        worst.residual.add(stored === toHalf(residual) ? 0 : Math.max(0, away), () => place(channel));
        worst.order.add(Math.max(0, Math.abs(stored) - least), () => place(channel));
        least = Math.min(least, Math.abs(stored));
      }
      for (const [channel, { residual, lost, isOutlier }] of candidates.entries()) {
        if (!isOutlier || kept.has(channel)) continue;
        // What f16 takes for zero, or for as large as the last one kept, may go.
        const over = Math.abs(clampToHalf(residual)) - least - lost - halfRounding(residual) - halfRounding(least);
        worst.dropped.add(Math.max(0, over), () => place(channel));
      }
      fewest += Math.max(0, candidates.filter(({ isOutlier }) => isOutlier).length - cap);
      most += Math.max(0, candidates.filter(({ mayBeOutlier }) => mayBeOutlier).length - cap);
    }
  }
  judge.check(
    `${name}: kept beside the codes without being an outlier, or twice: ${worst.kept.at}`,
    worst.kept.error,
    0,
  );
  judge.check(`${name}: residual of an outlier: ${worst.residual.at}`, worst.residual.error, 0);
  judge.check(`${name}: outlier after a smaller one: ${worst.order.at}`, worst.order.error, 0);
  judge.check(
    `${name}: outlier that is not kept, larger than those that are: ${worst.dropped.at}`,
    worst.dropped.error,
    0,
  );
  const miscounted = Math.max(fewest - clamped, clamped - most, 0);
  judge.check(`${name}: outliers past the cap: ${clamped} counted, ${fewest} to ${most} there`, miscounted, 0);
}

function candidatesOf(
  { range: [least, greatest] }: ScalarGroups,
  { block, codes, scales, offsets, values }: ScalarCodes,
  x: Float64Array,
  slack: Float64Array,
  { token, head, heads }: { readonly token: number; readonly head: number; readonly heads: number },
): readonly Candidate[] {
  const d = x.length;
  /** What float32 may lose of the ends of the range: nothing where they are the scale itself. */
  const ofEnds = Math.max(...[least, greatest].map((end) => (end ** 3 === end ? 0 : rounding * Math.abs(end))));
  const row = block.tokens === 'prompt' ? 0 : Math.floor(token / block.tokens);
  return Array.from(x, (number, channel) => {
    const at = (row * heads + head) * (d / block.channels) + Math.floor(channel / block.channels);
    const [scale, offset] = [scales[at]!, offsets?.[at] ?? 0];
    const difference = Math.fround(number - offset);
    const over = Math.max(difference - scale * greatest, scale * least - difference);
    // A difference is rounded alike everywhere where the number itself is known.
    const unsure = (slack[channel]! > 0 ? slack[channel]! + rounding * Math.abs(difference) : 0) + ofEnds * scale;
    const lost = slack[channel]! + rounding * (Math.abs(number) + Math.abs(offset) + scale);
    return {
      residual: number - offset - scale * values[codes[(token * heads + head) * d + channel]!]!,
      lost,
      isOutlier: over > unsure,
      mayBeOutlier: over > -unsure,
    };
  });
}
