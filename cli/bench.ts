import pc from 'picocolors';
import { generate } from '../codegen/generate.js';
import { generateFp16 } from '../codegen/generateFp16.js';
import { KvforgeError } from '../dsl/errors.js';
import { CudnnAttention } from '../runtime/bench/cudnn.js';
import { reasonOf } from '../runtime/bench/decode.js';
import { baselines } from '../runtime/bench/rows.js';
import { type BenchInput, runBench } from '../runtime/bench/run.js';
import type { BenchDocument, BenchRow } from '../runtime/bench/schema.js';
import type { Device } from '../runtime/device.js';
import { parseShape, type ShapeClass, shapeText } from '../runtime/tune/shapeClass.js';
import { type DeviceName, deviceNames, openDevice } from './devices.js';
import { type LockOptions, tunedChoice } from './lockOptions.js';
import { commandOf, originOf } from './origin.js';
import { type Context, exitCodes, type Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { checkShapes } from './shapes.js';
import { grouped, table } from './table.js';
import { type SchedulingOptions, targetOn, tunablesOf } from './target.js';
import { tuningHistory } from './tuningHistory.js';
import { commaList, oneOfNames, wholeNumber } from './values.js';

export interface BenchOptions extends SchedulingOptions, Omit<LockOptions, 'shape'> {
  readonly model: string;
  readonly device: string;
  readonly shapes?: string;
  readonly baseline?: string;
  readonly torch: string;
  readonly encode?: true | string;
  readonly samples: string;
  readonly seed: string;
  readonly budget: string;
  readonly out?: string;
  readonly html?: string;
  readonly history?: string;
}

export interface BenchTools {
  readonly open: typeof openDevice;
  readonly startCudnn: typeof CudnnAttention.start;
  readonly run: typeof runBench;
}

const shapesOf = (list: string) => commaList(list).map((text) => parseShape(text, '--shapes'));

/** Those whose figures are known on a GPU; a CPU that stands in for one takes seconds for a thousand tokens. */
function usualShapes(device: DeviceName): readonly ShapeClass[] {
  return shapesOf(device === 'cuda' ? '1x8192,1x32768,1x131072,16x8192,16x32768,64x8192' : '1x256,2x512');
}

const tools: BenchTools = { open: openDevice, startCudnn: CudnnAttention.start, run: runBench };

export async function bench(
  context: Context,
  schemeNames: string,
  options: BenchOptions,
  { open, startCudnn, run }: BenchTools = tools,
): Promise<Outcome> {
  const deviceName = oneOfNames('--device', options.device, deviceNames);
  const cuda = deviceName === 'cuda';
  const samples = wholeNumber('--samples', options.samples, { from: 5, to: 10_000 });
  const seed = wholeNumber('--seed', options.seed, { from: 0, to: 2 ** 31 });
  const budgetMs = wholeNumber('--budget', options.budget, { from: 1, to: 86_400 }) * 1000;
  const given = options.shapes === undefined ? undefined : shapesOf(options.shapes);
  const baseline = oneOfNames('--baseline', options.baseline ?? (cuda ? 'cudnn' : 'fp16'), baselines);
  const encodeTokens =
    options.encode === undefined
      ? undefined
      : wholeNumber('--encode', options.encode === true ? '8192' : options.encode, { from: 1, to: 2 ** 24 });
  if (options.out !== undefined) await requirePlace(options.out, '--out');
  if (options.html !== undefined) await requirePlace(options.html, '--html');
  const history = options.history === undefined ? [] : await tuningHistory(options.history);
  const model = await resolveModel(options.model);
  const shapes = given ?? usualShapes(deviceName).filter(({ tokens }) => tokens <= model.maxPositions);
  checkShapes(shapes, model, '--shapes');
  if (encodeTokens !== undefined) checkShapes([{ sequences: 1, tokens: encodeTokens }], model, '--encode');
  const schemes = await Promise.all(commaList(schemeNames).map((name) => resolveScheme(name, model)));

  const device = await open(deviceName, { checks: 'none' }, context);
  let document: BenchDocument;
  try {
    const target = targetOn(device, options);
    const named = tunablesOf(options.set);
    // A lock file may have other tunables for every shape; what is the same for several is told once.
    const told = new Set<string>();
    const once = (line: string) => {
      if (!told.has(line)) context.progress(line);
      told.add(line);
    };
    const benched = schemes.map((scheme) => ({
      name: scheme.name,
      generate: async (shape: ShapeClass) => {
        const kernels = { scheme, model, target, device: device.identity.name };
        const { choice } = await tunedChoice(
          { progress: once },
          { ...options, shape: shapeText(shape) },
          kernels,
          named,
        );
        return generate(scheme, model, target, choice);
      },
    }));
    context.progress(
      `benchmarking ${schemes.map(({ name }) => name).join(', ')} on ${model.name}: ${device.description}`,
    );
    const cudnn = cuda ? cudnnOf(device, options.torch, startCudnn) : Promise.resolve({ missing: 'no CUDA device' });
    try {
      document = await run({
        device,
        model,
        schemes: benched,
        fp16: await generateFp16(model, target).catch(unfitting),
        cudnn,
        shapes,
        encode:
          encodeTokens === undefined
            ? undefined
            : { tokens: encodeTokens, torch: cuda ? { python: options.torch } : undefined },
        baseline,
        samples,
        seed,
        budgetMs,
        origin: await originOf(commandOf('bench', schemeNames, options)),
        progress: context.progress,
      });
    } finally {
      const started = await cudnn;
      if (!('missing' in started)) started.close();
    }
  } finally {
    await device.close();
  }
  if (options.out !== undefined) await writeWhole(options.out, '--out', `${JSON.stringify(document, null, 2)}\n`);
  if (options.html !== undefined) {
    const { buildBenchReport } = await import('../runtime/report/benchReport.js');
    await writeWhole(options.html, '--html', await buildBenchReport(document, history));
  }
  // Nothing measured is no success either; the document says why.
  const failed = document.rows.length === 0 || document.rows.some(({ correct }) => !correct);
  return { code: failed ? exitCodes.failed : exitCodes.done, json: document, text: textOf(document, context) };
}

/** A target that has no fp16 kernel for the model is measured without. */
function unfitting(error: unknown): KvforgeError {
  if (error instanceof KvforgeError && error.code === 'does-not-fit') return error;
  throw error;
}

/** cuDNN, or why there is none: a comparison that cannot be made ends no measurement. */
async function cudnnOf(device: Device, python: string, start: BenchTools['startCudnn']): BenchInput['cudnn'] {
  return start(device.identity, { python }).catch((error: unknown) => ({ missing: reasonOf(error) }));
}

/** What attention was generated with: where a schedule has no room, another one takes its place. */
function tunablesText({ scheme, stage, shape, tunables }: BenchRow): readonly string[] {
  const named = Object.values(tunables).flatMap(Object.entries<number | string>);
  if (named.length === 0) return [];
  return [`${scheme}, ${stage}, ${shape}: ${named.map(([name, value]) => `${name} ${value}`).join(', ')}`];
}

function textOf(document: BenchDocument, context: Context): string {
  const { red } = pc.createColors(context.colors);
  const number = (value: number | null, digits: number) => (value === null ? '' : value.toFixed(digits));
  const right = (title: string) => ({ title, align: 'right' as const });
  const columns = [
    { title: 'scheme' },
    { title: 'stage' },
    { title: 'shape' },
    right('splits'),
    right('us'),
    right('spread'),
    right('bytes read'),
    right('GB/s'),
    right('roofline'),
    right('error'),
    right('to fp16'),
    right('to cuDNN'),
  ];
  const rows = document.rows.map((row: BenchRow) => [
    row.scheme,
    row.stage,
    row.shape,
    row.splits === null ? '' : String(row.splits),
    row.us.toFixed(1),
    row.spread.toFixed(1),
    grouped(row.bytesRead),
    `${row.gbps.toFixed(row.gbps < 10 ? 3 : 0)}${row.cold ? '' : ' warm'}`,
    `${(row.roofline * 100).toFixed(0)}%`,
    row.correct ? row.maxError!.toExponential(1) : red(row.maxError?.toExponential(1) ?? 'no number'),
    number(row.ratioFp16, 2),
    number(row.ratioCudnn, 2),
  ]);
  const { cudnn, ceiling, device, driver, clock, skipped } = document;
  const operations = ceiling.operations === null ? '' : `; specified for ${ceiling.operations / 1e12} TFLOP/s`;
  const lines = [
    `${device}, driver ${driver}; times by the ${clock}'s clock`,
    `a kernel that only reads: ${ceiling.gbps.toFixed(ceiling.gbps < 10 ? 3 : 0)} GB/s${operations}`,
    'missing' in cudnn ? `cuDNN: ${cudnn.missing}` : `cuDNN ${cudnn.cudnn}, torch ${cudnn.torch}, CUDA ${cudnn.cuda}`,
    ...document.rows.flatMap((row) => [
      ...(row.stage === 'attend' ? tunablesText(row) : []),
      ...(row.stage === 'encode' ? [`${row.scheme}, ${row.stage}, ${row.shape}: ${row.checked}`] : []),
      ...(row.stage === 'encode' && row.ratio !== null
        ? [`${row.scheme}, ${row.stage}, ${row.shape}: ${row.ratio.toFixed(1)} times as fast as torch`]
        : []),
      ...row.notes.map((note) => `${row.scheme}, ${row.stage}, ${row.shape}: ${note}`),
    ]),
    ...skipped.map(({ scheme, stage, shape, reason }) => `${scheme}, ${stage}, ${shape}: not measured: ${reason}`),
  ];
  return `${table(columns, rows, context.colors)}\n${lines.join('\n')}\n`;
}
