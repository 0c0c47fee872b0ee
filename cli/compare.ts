import pc from 'picocolors';
import { generate } from '../codegen/generate.js';
import { generateFp16 } from '../codegen/generateFp16.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Scheme } from '../dsl/scheme.js';
import { keyValueSchemeNames } from '../dsl/schemes/presets.js';
import { tableOf } from '../runtime/compare/cells.js';
import { runCompare } from '../runtime/compare/run.js';
import type { CompareDocument } from '../runtime/compare/schema.js';
import { parseShape, type ShapeClass, shapeText } from '../runtime/tune/shapeClass.js';
import { activationsFor, layersOf } from './activations.js';
import { deviceNames, openDevice } from './devices.js';
import { type LockOptions, openLock, tunedChoice } from './lockOptions.js';
import { commandOf, originOf } from './origin.js';
import { type Context, exitCodes, type Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { checkShapes } from './shapes.js';
import { grouped, table } from './table.js';
import { type SchedulingOptions, targetOn } from './target.js';
import { commaList, oneOfNames, wholeNumber } from './values.js';

export interface CompareOptions extends Omit<SchedulingOptions, 'set'>, Omit<LockOptions, 'shape'> {
  readonly model: string;
  readonly device: string;
  readonly activations?: string;
  readonly layers?: string;
  readonly shapes?: string;
  readonly samples: string;
  readonly seed: string;
  readonly budget: string;
  readonly out?: string;
  readonly html?: string;
}

export interface CompareTools {
  readonly open: typeof openDevice;
  readonly run: typeof runCompare;
}

/**
 * Bytes, attention error and times of schemes beside each other.
 *
 * @param named names of schemes with commas between them; every preset if empty
 */
export async function compare(
  context: Context,
  named: string,
  options: CompareOptions,
  { open, run }: CompareTools = { open: openDevice, run: runCompare },
): Promise<Outcome> {
  const deviceName = oneOfNames('--device', options.device, deviceNames);
  const samples = wholeNumber('--samples', options.samples, { from: 5, to: 10_000 });
  const seed = wholeNumber('--seed', options.seed, { from: 0, to: 2 ** 31 });
  const budgetMs = wholeNumber('--budget', options.budget, { from: 1, to: 86_400 }) * 1000;
  const given =
    options.shapes === undefined ? undefined : commaList(options.shapes).map((text) => parseShape(text, '--shapes'));
  if (options.out !== undefined) await requirePlace(options.out, '--out');
  if (options.html !== undefined) await requirePlace(options.html, '--html');
  // A lock file that cannot be read is no fault of a scheme, in whose row it would end otherwise.
  await openLock(options);
  const model = await resolveModel(options.model);
  if (given !== undefined) checkShapes(given, model, '--shapes');
  const names = named === '' ? keyValueSchemeNames : commaList(named);
  const schemes = await Promise.all(names.map((name) => resolveScheme(name, model)));
  const activations = await activationsFor(model, options.activations);
  const layers = layersOf(options.layers, activations).map((layer) => activations.layer(layer));
  const shapes = given ?? [{ sequences: 1, tokens: layers[0]!.tokens }];

  const device = await open(deviceName, { checks: 'none' }, context);
  let document: CompareDocument;
  try {
    const target = targetOn(device, { ...options, set: [] });
    const generateFor = (scheme: Scheme) => async (shape: ShapeClass) => {
      const kernels = { scheme, model, target, device: device.identity.name };
      const { choice } = await tunedChoice(context, { ...options, shape: shapeText(shape) }, kernels, {});
      return generate(scheme, model, target, choice);
    };
    context.progress(`comparing ${schemes.map(({ name }) => name).join(', ')} on ${model.name}: ${device.description}`);
    document = await run({
      ...{ device, model, layers, shapes, samples, seed, budgetMs },
      schemes: schemes.map((scheme) => ({ scheme, generate: generateFor(scheme) })),
      source: activations.description,
      fp16: await generateFp16(model, target).catch(unfitting),
      origin: await originOf(commandOf('compare', named, options)),
      progress: context.progress,
    });
  } finally {
    await device.close();
  }
  if (options.out !== undefined) await writeWhole(options.out, '--out', `${JSON.stringify(document, null, 2)}\n`);
  if (options.html !== undefined) {
    const { buildComparePage } = await import('../runtime/compare/page.js');
    await writeWhole(options.html, '--html', await buildComparePage(document));
  }
  // Nothing measured is no success either; the rows say why.
  const failed = document.failed.length > 0 || document.rows.every(({ attentionError }) => attentionError === null);
  return { code: failed ? exitCodes.failed : exitCodes.done, json: document, text: textOf(document, context) };
}

/** A target that has no fp16 kernel for the model is measured without. */
function unfitting(error: unknown): KvforgeError {
  if (error instanceof KvforgeError && error.code === 'does-not-fit') return error;
  throw error;
}

function textOf(document: CompareDocument, { colors }: Context): string {
  const { red, green } = pc.createColors(colors);
  const { columns, rows } = tableOf(document);
  const cells = rows.map(({ row, cells: texts }) =>
    texts.map((text) => (row.correct === false ? red(text) : row.front ? green(text) : text)),
  );
  const { source, layers, queries, device, driver, untimed, fp16, shapes } = document;
  const times = fp16.times.map(({ shape, us }) => `; decode ${shape} ${us.toFixed(1)} us`).join('');
  const lines = [
    `${source}, ${layers.length > 1 ? 'layers' : 'layer'} ${layers.join(', ')}: error and bias of the last ${queries} queries of every head, means over the layers`,
    `* on the front: no other scheme has as few bytes and as small an error`,
    `fp16, ${shapes[0]}: ${grouped(fp16.bytes)} bytes, ${fp16.bytesPerToken.toFixed(1)} a token${times}`,
    `${device}, driver ${driver}; ${untimed === null ? "times by the device's clock" : `no times: ${untimed}`}`,
    ...rows.flatMap(({ row, remarks }) => remarks.map((remark) => `${row.scheme}: ${remark}`)),
  ];
  return `${table(columns, cells, colors)}\n${lines.join('\n')}\n`;
}
