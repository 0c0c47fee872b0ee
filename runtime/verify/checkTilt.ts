import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { ScalarGeometry } from '../../dsl/geometry.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import {
  type Cache,
  channelPairs,
  clampGain,
  inForm,
  meanOf,
  queryWeights,
  type TiltParts,
  unbiasedGain,
  unrotatedRows,
  vectorAt,
} from '../reference/index.js';
import { sliceTokens } from '../reference/segmentsEncode.js';
import { checkCodes } from './checkScalar.js';
import { checkTiltKeys } from './checkTiltKeys.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';
import { packTiltMiddle } from './packTilt.js';
import type { PromptQueries } from './promptQueries.js';
import { asFloats } from './run.js';
import type { promptTaps, Tap } from './tap.js';

/** A compressed prompt, its bytes, and what its kernels had on the way. */
export interface TiltEvidence {
  readonly parts: TiltParts;
  readonly layout: SequenceLayout;
  readonly share: Uint8Array;
  readonly tap: Tap;
  readonly queries: PromptQueries;
}

/** Holds every part of a middle with tile-rotated keys to float64, each to what the kernels had before it. */
export function checkTilt(g: TiltGeometry, evidence: TiltEvidence, prompt: Cache, judge: Judge): void {
  const { parts, tap, queries } = evidence;
  const { middle } = parts;
  const tapped = (entry: keyof typeof promptTaps, count: number) => asFloats(tap.bytesOf(entry)!).subarray(0, count);
  const plain = unrotatedRows(prompt.keys, middle.firstPosition, middle.tokens, parts.rope);
  checkPairs(g, parts, { plain, queries }, judge);
  const vectors = tapped('tilt_store', g.width * g.headDim);
  const fits = checkTiltKeys(g, parts, { plain, vectors, eigenvalues: tapped('basis_jacobi', g.width) }, judge);
  checkTiltValues(g, parts, prompt, judge);
  // Rows are too short for fields that do not fit.
  if (fits) checkRows(g, evidence, judge);
}

/** Weights and mean, which lie in the order of pairs. */
function checkPairs(
  g: TiltGeometry,
  { middle }: TiltParts,
  { plain, queries }: { readonly plain: ReturnType<typeof unrotatedRows>; readonly queries: PromptQueries },
  judge: Judge,
): void {
  const weights = new Worst();
  const means = new Worst();
  const exactWeights = queryWeights(queries.exact, g.kvHeads, g.model.rope);
  const exactMeans = meanOf(plain);
  for (let head = 0; head < g.kvHeads; head++) {
    for (const pair of channelPairs(g.model.rope, g.headDim)) {
      const [a, b] = pair.map((channel) => head * g.headDim + channel) as [number, number];
      let longest = 0;
      for (let token = 0; token < plain.rows; token++) {
        longest = Math.max(longest, Math.hypot(plain.data[token * g.width + a]!, plain.data[token * g.width + b]!));
      }
      for (const channel of [a, b]) {
        const weight = exactWeights[channel]!;
        const allowed = halfRounding(weight) + 1e-6 * weight;
        weights.add(Math.abs(middle.weights[channel]! - weight) / allowed, () => `channel ${channel}`);
        const mean = clampToHalf(exactMeans[channel]!);
        means.add(
          Math.abs(middle.mean[channel]! - mean) / (halfRounding(mean) + 2e-6 * longest),
          () => `channel ${channel}`,
        );
      }
    }
  }
  judge.check(`keyWeights, over their rounding: ${weights.at}`, weights.error, 1);
  judge.check(`keyMean, over its rounding: ${means.at}`, means.error, 1);
}

function checkTiltValues(g: TiltGeometry, { middle, rope }: TiltParts, { values }: Cache, judge: Judge): void {
  const { codes, scales, offsets, levels, gains, scaleChannels } = middle.tiltValues;
  const exact = sliceTokens(values, middle.firstPosition, middle.tokens);
  const numbers = inForm(exact, 'turned', middle.firstPosition, rope);
  const slack = { ...numbers, data: new Float64Array(numbers.data.length) };
  for (let head = 0; head < g.kvHeads; head++) {
    for (let token = 0; token < middle.tokens; token++) {
      vectorAt(slack, head, token).fill(1e-6 * Math.hypot(...vectorAt(numbers, head, token)));
    }
  }
  const coded = {
    form: 'turned',
    block: { tokens: 1, channels: scaleChannels },
    codes,
    scales,
    ...(offsets ? { offsets } : {}),
    values: levels,
  } as const;
  // Of a geometry it reads the sizes of heads, and how values are coded.
  checkCodes(g as unknown as ScalarGeometry, coded, 'values', { numbers, slack }, judge);
  if (!gains) return;
  const worst = new Worst();
  for (const [channel, stored] of gains.entries()) {
    const head = Math.floor(channel / g.headDim);
    const inHead = channel % g.headDim;
    let [squares, products, unsureSquares, unsureProducts] = [0, 0, 0, 0];
    for (let token = 0; token < middle.tokens; token++) {
      const y = vectorAt(numbers, head, token)[inHead]!;
      const lost = vectorAt(slack, head, token)[inHead]!;
      const at = token * g.kvHeads + head;
      const value = scales[at]! * levels[codes[at * g.headDim + inHead]!]!;
      squares += y * y;
      products += y * value;
      unsureSquares += (2 * Math.abs(y) + lost) * lost + 1e-6 * y * y;
      unsureProducts += (lost + 1e-6 * Math.abs(y)) * Math.abs(value);
    }
    const low = clampGain((squares - unsureSquares) / (products + unsureProducts));
    // Where rounding decides the sign of the products, there may be no gain at all.
    const high = products > unsureProducts ? clampGain((squares + unsureSquares) / (products - unsureProducts)) : 4;
    const least = products > unsureProducts ? low : 0.25;
    const wanted = unbiasedGain(squares, products);
    const allowed = halfRounding(wanted) + Math.max(0, wanted - least, high - wanted);
    worst.add(Math.abs(stored - wanted) / allowed, () => `KV head ${head}, channel ${inHead}`);
  }
  judge.check(`valueGains, over their rounding: ${worst.at}`, worst.error, 1);
}

/** Places of fields, and bits of rows beside those that hold something, which files of a cache hold too. */
function checkRows(g: TiltGeometry, { parts, layout, share }: TiltEvidence, judge: Judge): void {
  for (const [name, bytes] of packTiltMiddle(g, parts.middle)) {
    const { offset } = layout.parts.find((part) => part.name === name)!;
    const at = bytes.findIndex((byte, i) => byte !== share[offset + i]);
    judge.check(`${name}: byte ${at} is not as the layout has it`, at < 0 ? 0 : 1, 0);
  }
}
