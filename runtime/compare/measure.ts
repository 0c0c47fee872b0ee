import type { GeneratedKernels } from '../../codegen/generate.js';
import { layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import { geometryOf } from '../../dsl/geometry.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import { reasonOf } from '../bench/decode.js';
import { errorBar } from '../bench/run.js';
import type { Device } from '../device.js';
import { LoadedKernels } from '../kernels.js';
import type { LayerActivations } from '../report/activations.js';
import { type LayerResult, measureLayer } from '../report/measure.js';
import { mean } from '../report/results.js';
import { type ShapeClass, shapeText } from '../tune/shapeClass.js';
import type { ComparedLayer, CompareRow } from './schema.js';

/** A scheme that takes part. */
export interface ComparedScheme {
  readonly scheme: Scheme;
  /** Its kernels, as they suit a shape. */
  readonly generate: (shape: ShapeClass) => Promise<GeneratedKernels>;
}

export interface MeasureInput {
  readonly device: Device;
  readonly model: ModelShape;
  readonly layers: readonly LayerActivations[];
  /** Bytes are counted for this one. */
  readonly shape: ShapeClass;
  readonly progress: (line: string) => void;
}

/** A row before it is set beside others. */
export type MeasuredRow = Omit<CompareRow, 'front' | 'times'>;

/** Entries that neither compress a prompt nor attend. */
const unused = ['append_token', 'decompress', 'mass_scores', 'mass_tokens', 'move_words'];

/**
 * Bytes, attention error and kernel error of one scheme. What is wrong with one scheme must not end the comparison of
 * the others: it is the row's reason.
 *
 * @throws what a device throws that is lost, and whatever is no KvforgeError
 */
export async function measureScheme({ scheme, generate }: ComparedScheme, input: MeasureInput): Promise<MeasuredRow> {
  const { device, model, layers, shape, progress } = input;
  let row: MeasuredRow = withoutFigures(scheme.name);
  try {
    const geometry = geometryOf(scheme, model);
    row = { ...row, ...bytesOf(layoutSequence(geometry, { tokens: shape.tokens, generated: 0 }).bytes, model, shape) };
    const generated = await generate({ sequences: 1, tokens: layers[0]!.tokens });
    const entries = generated.manifest.kernels.map(({ entry }) => entry).filter((entry) => !unused.includes(entry));
    const kernels = await LoadedKernels.load(device, generated, entries);
    const results: LayerResult[] = [];
    for (const activations of layers) {
      const { result } = await measureLayer(kernels, activations);
      const { attentionError, attentionBias, maxError } = result;
      const figures = `attention error ${attentionError.toFixed(4)}, bias ${attentionBias.toFixed(4)}, kernel error ${maxError.toExponential(1)}`;
      progress(
        `${scheme.name}: ${shapeText({ sequences: 1, tokens: activations.tokens })}, layer ${result.layer}: ${figures}`,
      );
      results.push(result);
    }
    const notes = geometry.weighted ? [weighedNote] : [];
    return { ...row, ...figuresOf(results, layers, errorBar(generated.target)), notes };
  } catch (error) {
    if (!(error instanceof KvforgeError) || error.code === 'device-lost') throw error;
    const reason = reasonOf(error);
    progress(`${scheme.name}: ${reason}`);
    return { ...row, reason, correct: faults.includes(error.code) ? false : null };
  }
}

const weighedNote = 'judged by queries that its prefill has weighed by: for queries to come its error may be larger';

/** What only kernels that are wrong end with; other errors say that a scheme and a model do not go together. */
const faults: readonly string[] = ['kernel-fault', 'compile-failed', 'check-failed'];

function withoutFigures(scheme: string): MeasuredRow {
  const none = { attentionError: null, attentionBias: null, kernelError: null, errorBar: null, correct: null };
  return { scheme, bytes: null, bytesPerToken: null, ratio: null, ...none, layers: [], reason: null, notes: [] };
}

/** f16 keys and values of one layer. */
export function exactBytes({ width }: Pick<ModelShape, 'width'>, { sequences, tokens }: ShapeClass): number {
  return sequences * tokens * width * 4;
}

function bytesOf(
  share: number,
  model: ModelShape,
  shape: ShapeClass,
): Pick<CompareRow, 'bytes' | 'bytesPerToken' | 'ratio'> {
  const bytes = shape.sequences * (share + recordBytes);
  return { bytes, bytesPerToken: bytes / (shape.sequences * shape.tokens), ratio: exactBytes(model, shape) / bytes };
}

/** Null where a number is none, as JSON has no other word for it. */
const orNull = (value: number): number | null => (Number.isFinite(value) ? value : null);

function figuresOf(results: readonly LayerResult[], layers: readonly LayerActivations[], bar: number) {
  const kernelError = Math.max(...results.map(({ maxError }) => maxError));
  const attentionError = mean(results.map((each) => each.attentionError));
  return {
    attentionError: orNull(attentionError),
    attentionBias: orNull(mean(results.map((each) => each.attentionBias))),
    kernelError: orNull(kernelError),
    errorBar: bar,
    correct: kernelError <= bar && Number.isFinite(attentionError),
    layers: results.map(
      (each, index): ComparedLayer => ({
        layer: each.layer,
        tokens: layers[index]!.tokens,
        attentionError: orNull(each.attentionError),
        attentionBias: orNull(each.attentionBias),
        keysOnlyError: orNull(each.keysOnlyError),
        valuesOnlyError: orNull(each.valuesOnlyError),
        kernelError: orNull(each.maxError),
      }),
    ),
  };
}
