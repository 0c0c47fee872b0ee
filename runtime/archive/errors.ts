import { layerShape, type ModelShape } from '../../dsl/model.js';
import { outputDifference } from '../reference/attention.js';
import type { HeadTensor } from '../reference/shapes.js';
import { outputsOver } from '../report/attentionOutputs.js';
import { numbersOf } from './rows.js';
import type { UnpackedLayer } from './unpack.js';

/** A layer as it was before, with what its queries were, where they are known. */
export interface ExactLayer {
  readonly layer: number;
  readonly tokens: number;
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
  /** Of the last positions, after RoPE, and the tokens that each sees. */
  readonly asked?: { readonly queries: HeadTensor; readonly visible: readonly number[] } | undefined;
}

/** What a layer lost: `sqrt(sum |b - a|^2 / sum |a|^2)` each, a exact and b read back, over all tokens. */
export interface ArchiveErrors {
  readonly layer: number;
  readonly keys: number;
  readonly values: number;
  /** Of attention outputs; undefined without queries. */
  readonly attention: number | undefined;
}

/** Compares what was read back with what was packed. */
export function archiveErrors(model: ModelShape, exact: ExactLayer, read: UnpackedLayer): ArchiveErrors {
  const tensor = (bits: Uint16Array): HeadTensor => {
    return { heads: model.kvHeads, tokens: exact.tokens, channels: model.headDim, data: numbersOf(bits) };
  };
  const before = { keys: tensor(exact.keys), values: tensor(exact.values) };
  const after = { keys: tensor(read.keys), values: tensor(read.values) };
  const lost = (operand: 'keys' | 'values') => outputDifference(before[operand].data, after[operand].data).error;
  const { slidingWindow = 0 } = layerShape(model, exact.layer);
  const outputs = (cache: typeof before) =>
    exact.asked && outputsOver({ model, groupSize: model.groupSize }, cache, { ...exact.asked, slidingWindow });
  const whole = outputs(before);
  return {
    layer: exact.layer,
    keys: lost('keys'),
    values: lost('values'),
    attention: whole && outputDifference(whole, outputs(after)!).error,
  };
}
