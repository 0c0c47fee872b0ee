import { readFile } from 'node:fs/promises';
import pc from 'picocolors';
import { packagePath } from '../codegen/packageRoot.js';
import { KvforgeError } from '../dsl/errors.js';
import { geometryOf } from '../dsl/geometry.js';
import type { Scheme } from '../dsl/scheme.js';
import { shard as scheme } from '../dsl/schemes/shard.js';
import { type Activations, loadActivations } from '../runtime/report/activations.js';
import type { LayerCodes } from '../runtime/report/measure.js';
import { buildReport } from '../runtime/report/report.js';
import { type BackendResult, firstRun, mean, type SchemeResult } from '../runtime/report/results.js';
import { layersOf } from './activations.js';
import { type BackendInput, type BackendName, backendNames, runBackend } from './demoBackend.js';
import { type Context, exitCodes, type Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { duration, table } from './table.js';
import { commaList, oneOfNames } from './values.js';

export interface DemoOptions {
  readonly out: string;
  readonly layers: string;
  readonly backends: string;
}

export type RunBackend = typeof runBackend;

/** Real activations through the kernels of every backend, held to the reference; then the report. */
export async function demo(context: Context, options: DemoOptions, run: RunBackend = runBackend): Promise<Outcome> {
  const started = performance.now();
  const names = commaList(options.backends).map((name) => oneOfNames('--backends', name, backendNames));
  await requirePlace(options.out, '--out');
  const path = packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors');
  const activations = await loadActivations(path);
  const layers = layersOf(options.layers, activations);
  context.progress(`${scheme.name} on ${activations.description}, layers ${layers.join(', ')}`);

  const exchange = shareCodes(names, layers);
  const backends = await runAll(names, (name) =>
    run(name, scheme, { activations, layers, ...exchange(name) }, context),
  );
  const result = summarize(scheme, activations, backends);
  const figuresFrom = performance.now();
  const { version } = JSON.parse(await readFile(packagePath('package.json'), 'utf8')) as { version: string };
  const html = await buildReport({
    version,
    source: activations.description,
    geometry: geometryOf(scheme, activations.model),
    layers: layers.map((layer) => activations.layer(layer)),
    schemes: [result],
  });
  await writeWhole(options.out, '--out', html);

  const failed = backends.filter((each) => each.status === 'ran' && !(each.maxError <= each.bar));
  const skipped = backends.filter(({ status }) => status === 'skipped').length;
  const reportMs = Math.round(performance.now() - figuresFrom);
  const ms = Math.round(performance.now() - started);
  return {
    code: failed.length > 0 ? exitCodes.failed : exitCodes.done,
    json: {
      model: activations.model.name,
      source: activations.description,
      layers,
      schemes: [{ ...result, backends: backends.map(backendJson) }],
      failed: failed.map(({ backend }) => backend),
      skipped,
      report: options.out,
      reportMs,
      ms,
    },
    text: textOf(result, options.out, ms, context),
  };
}

/**
 * The first backend compresses every layer; another compresses the first layer itself and attends over the first
 * backend's codes of the others, which holds both to the same codes and keeps a software GPU within a minute.
 */
function shareCodes(names: readonly BackendName[], layers: readonly number[]) {
  const codes = new Map(layers.map((layer) => [layer, deferred<LayerCodes | undefined>()]));
  return (name: BackendName): Pick<BackendInput, 'codesFor' | 'onCodes' | 'onEnd'> => ({
    codesFor: async (layer) => (name === names[0] || layer === layers[0] ? undefined : codes.get(layer)!.promise),
    onCodes: (layer, written) => {
      if (name === names[0]) codes.get(layer)!.resolve(written);
    },
    // A first backend that is missing or fails leaves the others to compress for themselves.
    onEnd: () => {
      if (name === names[0]) for (const { resolve } of codes.values()) resolve(undefined);
    },
  });
}

function deferred<T>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** Backends run side by side: one is a process of its own, the other has threads of its own. */
async function runAll(
  names: readonly BackendName[],
  run: (name: BackendName) => Promise<BackendResult>,
): Promise<readonly BackendResult[]> {
  const settled = await Promise.allSettled(names.map(run));
  const failure = settled.find((each) => each.status === 'rejected');
  if (failure) throw failure.reason;
  const results = settled.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
  if (results.every(({ status }) => status === 'skipped')) {
    const reasons = results.flatMap((each) => (each.status === 'skipped' ? [`${each.backend}: ${each.reason}`] : []));
    throw new KvforgeError('missing-capability', {
      at: '--backends',
      expected: 'one that runs here',
      received: reasons.join('; '),
      hint: 'Run kvforge doctor.',
    });
  }
  return results;
}

function summarize(scheme: Scheme, activations: Activations, backends: readonly BackendResult[]): SchemeResult {
  const { layers } = firstRun({ backends } as SchemeResult)!;
  const { bytes, fp16Bytes } = layers[0]!;
  const geometry = geometryOf(scheme, activations.model);
  return {
    scheme: scheme.name,
    ...(geometry.family === 'low-rank' ? { rank: geometry.rank } : {}),
    ratio: fp16Bytes / bytes,
    bytes,
    fp16Bytes,
    attentionError: mean(layers.map(({ attentionError }) => attentionError)),
    backends,
  };
}

function backendJson(result: BackendResult): object {
  if (result.status === 'skipped') return { ...result, maxError: null, ms: null };
  return { ...result, passed: result.maxError <= result.bar, ms: Math.round(result.encodeMs + result.attendMs) };
}

function textOf(result: SchemeResult, report: string, ms: number, context: Context): string {
  const { green, red, yellow } = pc.createColors(context.colors);
  const rows = result.backends.flatMap((each): string[][] => {
    if (each.status === 'skipped') return [[each.backend, '', '', '', '', '', yellow('skipped')]];
    return each.layers.map((layer) => [
      each.backend,
      String(layer.layer),
      `${(layer.attentionError * 100).toFixed(1)}%`,
      layer.maxError.toExponential(1),
      layer.codesFrom === each.backend ? duration(layer.encodeMs) : `by ${layer.codesFrom}`,
      duration(layer.attendMs),
      layer.maxError <= each.bar ? green('ok') : red(`above ${each.bar}`),
    ]);
  });
  const right = (title: string) => ({ title, align: 'right' as const });
  const columns = [
    { title: 'backend' },
    right('layer'),
    right('attention error'),
    right('kernel error'),
    right('encode'),
    right('attend'),
    { title: '' },
  ];
  const skips = result.backends.flatMap((each) =>
    each.status === 'skipped' ? [`${each.backend}: ${each.reason}. ${each.hint}\n`] : [],
  );
  const closing = `${result.scheme}: ${result.ratio.toFixed(2)} times smaller than fp16, ${result.bytes} bytes a layer; ${duration(ms)}\nreport: ${report}\n`;
  return `${table(columns, rows, context.colors)}\n${skips.join('')}${closing}`;
}
