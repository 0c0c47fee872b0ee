import type { SequenceLayout } from '../../codegen/plan/layout.js';
import type { ScalarGeometry } from '../../dsl/geometry.js';
import {
  blocksOf,
  type Cache,
  type HeadTensor,
  inForm,
  numbersOf,
  type PlacedBlock,
  pairChannels,
  pairsOf,
  type ScalarCodes,
  type ScalarParts,
  vectorAt,
} from '../reference/index.js';
import { sliceTokens } from '../reference/segmentsEncode.js';
import { blockErrors } from './checkBlock.js';
import { checkOutliers } from './checkOutliers.js';
import { checkResiduals } from './checkResiduals.js';
import { type Judge, Worst } from './judge.js';
import { packScalarMiddle } from './packScalar.js';

/** A compressed prompt: what its share holds, and the bytes of it. */
export interface ScalarEvidence {
  readonly parts: ScalarParts;
  readonly layout: SequenceLayout;
  readonly share: Uint8Array;
}

/** Holds offsets, scales and codes of the middle to float64, each to what the kernels had stored before it. */
export function checkScalar(g: ScalarGeometry, evidence: ScalarEvidence, prompt: Cache, judge: Judge): void {
  const { parts } = evidence;
  for (const name of ['keys', 'values'] as const) {
    const coded = parts.middle[name];
    const exact = sliceTokens(prompt[name], parts.middle.firstPosition, parts.middle.tokens);
    const numbers = inForm(exact, coded.form, parts.middle.firstPosition, parts.rope);
    const slack = slackOf(numbers, coded.form, parts.rope);
    checkCodes(g, coded, name, { numbers, slack }, judge);
    if (coded.residuals) checkResiduals(coded, name, { numbers, slack }, judge);
    const clamped = parts.middle.clamped?.[name] ?? 0;
    if (coded.outliers) checkOutliers(g[name], coded, name, { numbers, slack, clamped }, judge);
  }
  checkPadding(g, evidence, judge);
}

/** Holds offsets, scales and codes to the numbers that they are of. */
export function checkCodes(
  g: ScalarGeometry,
  coded: ScalarCodes,
  name: keyof Cache,
  { numbers, slack }: Record<'numbers' | 'slack', HeadTensor>,
  judge: Judge,
): void {
  const groups = g[name];
  const worst = {
    refused: new Worst(),
    offset: new Worst(),
    scale: new Worst(),
    code: new Worst(),
    nearest: new Worst(),
  };
  for (const block of blocksOf(coded.block, numbers)) {
    const { refused, offset, scale, code, nearest } = blockErrors(groups, {
      x: numbersOf(numbers, block),
      slack: numbersOf(slack, block),
      codes: codesOf(g, coded, block),
      scale: coded.scales[block.at]!,
      offset: coded.offsets?.[block.at] ?? 0,
      values: coded.values,
    });
    if (refused) {
      worst.refused.add(Number.POSITIVE_INFINITY, () => `${refused.what} ${refused.given}, ${blockPlace(block)}`);
    }
    worst.offset.add(offset, () => blockPlace(block));
    worst.scale.add(scale, () => blockPlace(block));
    worst.code.add(code.error, () => numberPlace(block, code.index));
    worst.nearest.add(nearest.error, () => numberPlace(block, nearest.index));
  }
  const codec = groups.codec.name;
  judge.check(`${name}: ${codec} gives what cannot be stored: ${worst.refused.at}`, worst.refused.error, 0);
  judge.check(`${name}: offset, in f16 steps: ${worst.offset.at}`, worst.offset.error, 0);
  judge.check(`${name}: scale, in f16 steps: ${worst.scale.at}`, worst.scale.error, 0);
  judge.check(`${name}: code, from what ${codec} gives for the stored scale: ${worst.code.at}`, worst.code.error, 0);
  judge.check(`${name}: code past the midpoint to the nearest level: ${worst.nearest.at}`, worst.nearest.error, 0);
}

/** The codes of a block, token by token. */
function codesOf(g: ScalarGeometry, { codes }: ScalarCodes, block: PlacedBlock): Uint8Array {
  const { head, firstToken, tokens, firstChannel, channels } = block;
  return Uint8Array.from({ length: tokens * channels }, (_, i) => {
    const token = firstToken + Math.floor(i / channels);
    return codes[(token * g.kvHeads + head) * g.headDim + firstChannel + (i % channels)]!;
  });
}

function blockPlace({ head, firstToken, tokens, firstChannel, channels }: PlacedBlock): string {
  const [lastToken, lastChannel] = [firstToken + tokens - 1, firstChannel + channels - 1];
  return `KV head ${head}, middle tokens ${firstToken} to ${lastToken}, channels ${firstChannel} to ${lastChannel}`;
}

function numberPlace({ head, firstToken, firstChannel, channels }: PlacedBlock, index: number): string {
  const [token, channel] = [firstToken + Math.floor(index / channels), firstChannel + (index % channels)];
  return `KV head ${head}, middle token ${token}, channel ${channel}`;
}

/** What float32 may lose of the numbers in the form that is coded: a part of all that each is a sum of. */
function slackOf(numbers: HeadTensor, form: ScalarCodes['form'], rope: ScalarParts['rope']): HeadTensor {
  const slack: HeadTensor = { ...numbers, data: new Float64Array(numbers.data.length) };
  if (form === 'cached') return slack;
  const pairs = form === 'polar' ? pairsOf(rope, numbers.channels) : rope.invFreq.map((_, j) => pairChannels(rope, j));
  for (let head = 0; head < numbers.heads; head++) {
    for (let token = 0; token < numbers.tokens; token++) {
      const vector = vectorAt(numbers, head, token);
      const lost = vectorAt(slack, head, token);
      if (form === 'turned') lost.fill(1e-6 * Math.hypot(...vector));
      else if (form === 'polar') for (const [a, b] of pairs) [lost[a], lost[b]] = [1e-6 * vector[a]!, 3e-7];
      else for (const [a, b] of pairs) lost[a] = lost[b] = 1e-6 * Math.hypot(vector[a]!, vector[b]!);
    }
  }
  return slack;
}

/** What lies beside the fields of a row, or beside its last scale, is zero: files of a cache hold it too. */
function checkPadding(g: ScalarGeometry, { parts, layout, share }: ScalarEvidence, judge: Judge): void {
  for (const [name, bytes] of packScalarMiddle(g, parts.middle)) {
    const { offset } = layout.parts.find((part) => part.name === name)!;
    const at = bytes.findIndex((byte, i) => byte !== share[offset + i]);
    judge.check(`${name}: byte ${at} holds bits beside the fields`, at < 0 ? 0 : 1, 0);
  }
}
