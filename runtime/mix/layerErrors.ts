import { splitPrompt } from '../../codegen/plan/layout.js';
import { geometryOf } from '../../dsl/geometry.js';
import { frequenciesFor, layerShape, type ModelShape } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import { outputDifference } from '../reference/attention.js';
import type { Cache, HeadTensor } from '../reference/shapes.js';
import type { LayerActivations } from '../report/activations.js';
import { outputsOver } from '../report/attentionOutputs.js';
import { readBack } from './readBack.js';

/** Attention errors of one layer, schemes in the order given: `sqrt(sum |b - a|^2 / sum |a|^2)`, a the exact outputs. */
export interface ErrorsAlone {
  /** With only the keys coded. */
  readonly keys: readonly number[];
  /** With only the values coded. */
  readonly values: readonly number[];
}

/** Keys of one scheme, values of another. */
export interface Pair {
  readonly keys: ScalarScheme;
  readonly values: ScalarScheme;
}

/** What the keys of each scheme cost in one layer, and what its values do, the others being exact. */
export function errorsAlone(
  model: ModelShape,
  activations: LayerActivations,
  schemes: readonly ScalarScheme[],
): ErrorsAlone {
  const { exact } = activations;
  const lost = measuring(model, activations);
  return {
    keys: schemes.map((scheme) => lost({ ...exact, keys: readOf('keys', model, activations, scheme) })),
    values: schemes.map((scheme) => lost({ ...exact, values: readOf('values', model, activations, scheme) })),
  };
}

/** What keys and values cost in one layer, both coded. */
export function errorsTogether(
  model: ModelShape,
  activations: LayerActivations,
  pairs: readonly Pair[],
): readonly number[] {
  const lost = measuring(model, activations);
  return pairs.map(({ keys, values }) =>
    lost({
      keys: readOf('keys', model, activations, keys),
      values: readOf('values', model, activations, values),
    }),
  );
}

/** Measures caches against the exact one, over all recorded queries. */
function measuring(model: ModelShape, { layer, exact, queries, visible }: LayerActivations): (read: Cache) => number {
  const { slidingWindow = 0 } = layerShape(model, layer);
  const outputs = (cache: Cache) =>
    outputsOver({ model, groupSize: model.groupSize }, cache, { queries, visible, slidingWindow });
  const whole = outputs(exact);
  return (read) => outputDifference(whole, outputs(read)).error;
}

function readOf(
  operand: keyof Cache,
  model: ModelShape,
  { layer, tokens, exact }: LayerActivations,
  scheme: ScalarScheme,
): HeadTensor {
  const geometry = geometryOf(scheme, model);
  const { sinks, middle } = splitPrompt(geometry, tokens);
  const { rope } = layerShape(model, layer);
  const rotation = { invFreq: frequenciesFor(rope, tokens), pairing: rope.pairing };
  return readBack(geometry[operand], exact[operand], { first: sinks, tokens: middle }, rotation);
}
