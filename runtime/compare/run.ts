import type { Fp16Kernels } from '../../codegen/generateFp16.js';
import type { KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import { type BenchInput, checkNames, type Origin, runBench } from '../bench/run.js';
import type { BenchDocument } from '../bench/schema.js';
import type { Device } from '../device.js';
import type { LayerActivations } from '../report/activations.js';
import { type ShapeClass, shapeText } from '../tune/shapeClass.js';
import { type ComparedScheme, exactBytes, type MeasuredRow, measureScheme } from './measure.js';
import { paretoFront } from './pareto.js';
import { type CompareDocument, type CompareRow, compareDocument, compareFormat } from './schema.js';
import { reasonAgainstTimes, timesOf, untimedNotes } from './times.js';

export interface CompareInput {
  readonly device: Device;
  readonly model: ModelShape;
  readonly schemes: readonly ComparedScheme[];
  /** Recorded activations, of one layer at least, and what they were recorded from. */
  readonly layers: readonly LayerActivations[];
  readonly source: string;
  /** One at least: bytes are those of the first, and so is the prompt whose encoding is timed. */
  readonly shapes: readonly ShapeClass[];
  /** Attention without compression, which is timed beside the schemes; or why there is none. */
  readonly fp16: Fp16Kernels | KvforgeError;
  readonly samples: number;
  readonly seed: number;
  /** As a bench has it. */
  readonly budgetMs: number;
  readonly origin: Origin;
  readonly progress: (line: string) => void;
}

/**
 * Bytes against attention error of schemes on the same activations, and the times of those whose kernels are right.
 *
 * @param bench what takes the times
 * @throws KvforgeError `wrong-use` for two schemes of one name; what is wrong with a single scheme is in its row
 */
export async function runCompare(input: CompareInput, bench = runBench): Promise<CompareDocument> {
  const { device, model, schemes, layers, source, shapes, origin, progress } = input;
  const started = performance.now();
  checkNames(schemes.map(({ scheme }) => scheme));
  const shape = shapes[0]!;
  const measured: MeasuredRow[] = [];
  for (const scheme of schemes) measured.push(await measureScheme(scheme, { device, model, layers, shape, progress }));
  const untimed = reasonAgainstTimes(device);
  const right = schemes.filter((_, index) => measured[index]!.correct === true);
  const times = untimed === null && right.length > 0 ? await bench(benchOf(input, right)) : noTimes;
  const rows = ranked(measured.map((row) => timedRow(row, times)));
  const exact = exactBytes(model, shape);
  const { identity, kind } = device;
  // Parsed, so that no document is written that its own schema would refuse.
  return compareDocument.parse({
    format: compareFormat,
    ...origin,
    model: model.name,
    source,
    layers: layers.map(({ layer }) => layer),
    queries: layers[0]!.queries.tokens,
    device: identity.name,
    driver: identity.driver,
    kind,
    architecture: identity.architecture ?? null,
    shapes: shapes.map(shapeText),
    untimed,
    fp16: {
      bytes: exact,
      bytesPerToken: exact / (shape.sequences * shape.tokens),
      times: [...timesOf(times, 'fp16')],
    },
    rows: [...rows],
    failed: rows.filter(({ correct }) => correct === false).map(({ scheme }) => scheme),
    ms: performance.now() - started,
  } satisfies CompareDocument);
}

const noTimes: Pick<BenchDocument, 'rows' | 'skipped'> = { rows: [], skipped: [] };

function benchOf(input: CompareInput, right: readonly ComparedScheme[]): BenchInput {
  const { device, model, shapes, fp16, samples, seed, budgetMs, origin, progress } = input;
  return {
    ...{ device, model, shapes, fp16, samples, seed, budgetMs, origin, progress },
    schemes: right.map(({ scheme, generate }) => ({ name: scheme.name, generate })),
    cudnn: Promise.resolve({ missing: 'not asked for' }),
    encode: { tokens: shapes[0]!.tokens, torch: undefined },
    baseline: 'fp16',
  };
}

function timedRow(row: MeasuredRow, times: typeof noTimes): Omit<CompareRow, 'front'> {
  const own = timesOf(times, row.scheme);
  return {
    ...row,
    times: [...own],
    correct: row.correct === true ? own.every(({ correct }) => correct) : row.correct,
    notes: [...row.notes, ...untimedNotes(times, row.scheme)],
  };
}

/** With the front marked, by bytes; what is wrong neither lies on the front nor keeps another from it. */
function ranked(rows: readonly Omit<CompareRow, 'front'>[]): readonly CompareRow[] {
  const costs = rows.flatMap(({ scheme, bytes, attentionError: error, correct }) =>
    bytes === null || error === null || correct !== true ? [] : [{ scheme, bytes, error }],
  );
  const front = paretoFront(costs);
  const onFront = new Set(costs.filter((_, index) => front[index]).map(({ scheme }) => scheme));
  const order = ({ bytes, attentionError }: (typeof rows)[number]) =>
    bytes === null || attentionError === null ? Number.POSITIVE_INFINITY : bytes;
  return rows
    .map((row) => ({ ...row, front: onFront.has(row.scheme) }))
    .sort((a, b) => (order(a) === order(b) ? 0 : order(a) - order(b)));
}
