import { layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import { geometryOf } from '../../dsl/geometry.js';
import { mix } from '../../dsl/mix.js';
import type { ModelShape } from '../../dsl/model.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import type { LayerActivations } from '../report/activations.js';
import { type ErrorsAlone, errorsAlone, errorsTogether } from './layerErrors.js';
import { type LayerOption, leastError } from './leastError.js';

export interface MixInput {
  readonly model: ModelShape;
  /** Layers that were recorded, one at least. */
  readonly layers: readonly number[];
  /** Read when it is needed, and again: all layers at once may not fit in memory. */
  readonly load: (layer: number) => LayerActivations;
  /** What keys and values may be coded with; of one name each. */
  readonly candidates: readonly ScalarScheme[];
  /** Bytes of a token in one layer, means over the layers. */
  readonly budgets: readonly number[];
  readonly progress: (line: string) => void;
}

/** What one layer got. */
export interface MixedLayer {
  readonly layer: number;
  readonly tokens: number;
  readonly keys: ScalarScheme;
  readonly values: ScalarScheme;
  /** One sequence of as many tokens, its record included. */
  readonly bytes: number;
  readonly keysError: number;
  readonly valuesError: number;
  /** By the model: the root of the sum of their squares. */
  readonly predicted: number;
  /** Measured, both coded. */
  readonly together: number;
}

/** Keys and values of every layer under one budget. */
export interface Mixed {
  readonly layers: readonly MixedLayer[];
  readonly bytes: number;
  /** A token in one layer, mean over the layers. */
  readonly bytesPerToken: number;
  /** Root of the mean square over the layers: by the model, and as measured. */
  readonly predicted: number;
  readonly together: number;
}

/** One candidate by itself, and what a mix makes of its bytes. */
export interface UniformMix {
  readonly scheme: ScalarScheme;
  /** Keys and values of every layer coded with it. */
  readonly alone: Mixed;
  /** The best mix in at most its bytes. */
  readonly mix: Mixed;
}

export interface MixSearch {
  /** In the order of the budgets; undefined where the smallest candidates take more. */
  readonly mixes: readonly (Mixed | undefined)[];
  /** In the order of the candidates. */
  readonly uniform: readonly UniformMix[];
  /** The ends that all candidates were given. */
  readonly sinks: number;
  readonly window: number;
  /** Of the grid of bytes, and whether it cost nothing. */
  readonly unit: number;
  readonly exact: boolean;
}

/**
 * Finds for every recorded layer the keys of one candidate and the values of another, so that the sum over layers of the
 * squared attention errors, of keys alone plus of values alone, is the least that the bytes allow. What was chosen is then
 * measured together.
 *
 * Candidates get the largest sinks and window of any: ends of their own would make bytes and errors of keys depend on
 * what the values are coded with.
 *
 * @throws KvforgeError `invalid-scheme` for a candidate that does not fit the model, or whose codec reads back what is no
 * number
 */
export function searchMix({ model, layers, load, candidates: given, budgets, progress }: MixInput): MixSearch {
  const { sinks, window, candidates } = withEqualEnds(given);
  const pairs = candidates.flatMap((keys) => candidates.map((values) => ({ keys, values })));
  const measured = layers.map((layer) => {
    const activations = load(layer);
    const errors = errorsAlone(model, activations, candidates);
    requireNumbers(layer, candidates, errors);
    progress(`layer ${layer}: measured the keys and the values of ${candidates.length} schemes`);
    return {
      layer,
      tokens: activations.tokens,
      errors,
      options: optionsOf(model, activations.tokens, candidates, errors),
    };
  });
  const tokens = measured.reduce((sum, each) => sum + each.tokens, 0);
  const uniform = candidates.map((_, index) => measured.map(() => index * (candidates.length + 1)));
  const uniformBytes = uniform.map((chosen) =>
    measured.reduce((sum, { options }, at) => sum + options[chosen[at]!]!.bytes, 0),
  );
  const { assignments, unit, exact } = leastError(
    measured.map(({ options }) => options),
    [...budgets.map((budget) => Math.floor(budget * tokens)), ...uniformBytes],
  );
  const choices = [...assignments.map((found) => found?.chosen), ...uniform];
  // Layer by layer, so that one layer at a time is in memory.
  const columns = measured.map(({ layer, tokens: count, errors, options }, at) => {
    const wanted = [...new Set(choices.flatMap((chosen) => (chosen === undefined ? [] : [chosen[at]!])))];
    const errorsOf = errorsTogether(
      model,
      load(layer),
      wanted.map((index) => pairs[index]!),
    );
    progress(`layer ${layer}: measured ${wanted.length} pairs of keys and values together`);
    return new Map(
      wanted.map((index, i): [number, MixedLayer] => {
        const [ofKeys, ofValues] = [Math.floor(index / candidates.length), index % candidates.length];
        const { bytes: own, error } = options[index]!;
        return [
          index,
          {
            layer,
            tokens: count,
            keys: given[ofKeys]!,
            values: given[ofValues]!,
            bytes: own,
            keysError: errors.keys[ofKeys]!,
            valuesError: errors.values[ofValues]!,
            predicted: Math.sqrt(error),
            together: errorsOf[i]!,
          },
        ];
      }),
    );
  });
  const mixed = choices.map((chosen) =>
    chosen === undefined ? undefined : summed(columns.map((column, at) => column.get(chosen[at]!)!)),
  );
  return {
    mixes: mixed.slice(0, budgets.length),
    uniform: given.map((scheme, i) => ({
      scheme,
      alone: mixed[budgets.length + given.length + i]!,
      mix: mixed[budgets.length + i]!,
    })),
    ...{ sinks, window, unit, exact },
  };
}

/**
 * The least that keys and values of these candidates can take, in the unit of the budgets: known before anything is
 * measured.
 */
export function leastBytesPerToken({
  model,
  layers,
  load,
  candidates: given,
}: Pick<MixInput, 'model' | 'layers' | 'load' | 'candidates'>): number {
  const { candidates } = withEqualEnds(given);
  const tokens = layers.map((layer) => load(layer).tokens);
  const sum = (numbers: readonly number[]) => numbers.reduce((all, number) => all + number, 0);
  return sum(tokens.map((count) => Math.min(...bytesOfPairs(model, count, candidates)))) / sum(tokens);
}

function withEqualEnds(given: readonly ScalarScheme[]) {
  const sinks = Math.max(...given.map((scheme) => scheme.sinks));
  const window = Math.max(...given.map((scheme) => scheme.window));
  return { sinks, window, candidates: given.map((scheme) => ({ ...scheme, sinks, window })) };
}

/** Keys of candidate i with values of candidate j at i * candidates + j. */
function bytesOfPairs(model: ModelShape, tokens: number, candidates: readonly ScalarScheme[]): readonly number[] {
  return candidates.flatMap((keys) =>
    candidates.map((values) => {
      const geometry = geometryOf(mix({ name: 'mix', keys, values }), model);
      return layoutSequence(geometry, { tokens, generated: 0 }).bytes + recordBytes;
    }),
  );
}

function optionsOf(
  model: ModelShape,
  tokens: number,
  candidates: readonly ScalarScheme[],
  { keys, values }: ErrorsAlone,
): readonly LayerOption[] {
  return bytesOfPairs(model, tokens, candidates).map((bytes, index) => {
    const [ofKeys, ofValues] = [Math.floor(index / candidates.length), index % candidates.length];
    return { bytes, error: keys[ofKeys]! ** 2 + values[ofValues]! ** 2 };
  });
}

function requireNumbers(layer: number, candidates: readonly ScalarScheme[], errors: ErrorsAlone): void {
  for (const [i, { name }] of candidates.entries()) {
    for (const operand of ['keys', 'values'] as const) {
      const error = errors[operand][i]!;
      if (Number.isFinite(error)) continue;
      throw new KvforgeError('invalid-scheme', {
        at: `${name}.${operand}`,
        expected: `codes that finite numbers are read back from, in layer ${layer}`,
        received: `an attention error of ${error}`,
        hint: 'Hold the codec to the reference with kvforge verify.',
      });
    }
  }
}

function summed(layers: readonly MixedLayer[]): Mixed {
  const total = (of: (layer: MixedLayer) => number) => layers.reduce((sum, layer) => sum + of(layer), 0);
  const meanRoot = (of: (layer: MixedLayer) => number) => Math.sqrt(total((layer) => of(layer) ** 2) / layers.length);
  const bytes = total((layer) => layer.bytes);
  return {
    layers,
    bytes,
    bytesPerToken: bytes / total(({ tokens }) => tokens),
    predicted: meanRoot(({ predicted }) => predicted),
    together: meanRoot(({ together }) => together),
  };
}
