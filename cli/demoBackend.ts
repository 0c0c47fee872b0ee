import { defaultTargets, generate } from '../codegen/generate.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Target } from '../dsl/stage.js';
import { LoadedKernels } from '../runtime/kernels.js';
import type { Activations } from '../runtime/report/activations.js';
import { type LayerCodes, type LayerResult, measureLayer } from '../runtime/report/measure.js';
import type { BackendResult } from '../runtime/report/results.js';
import { openDevice } from './devices.js';
import { type Context, reportError } from './output.js';

export const backendNames = ['emulator', 'webgpu'] as const;
export type BackendName = (typeof backendNames)[number];

interface Backend {
  readonly target: Target;
  readonly precision: string;
  /** Largest error of the arithmetic that passes. */
  readonly bar: number;
}

const backends: Readonly<Record<BackendName, Backend>> = {
  emulator: { target: defaultTargets.cuda, precision: 'CUDA with tensor cores, f16 operands', bar: 2e-3 },
  webgpu: { target: defaultTargets.wgsl, precision: 'WGSL, f32', bar: 1e-5 },
};

/** Entries that neither compress a prompt nor attend. */
const unused = ['append_token', 'decompress', 'mass_scores', 'mass_tokens', 'move_words'];

/** Layers and how their codes travel between backends. */
export interface BackendInput {
  readonly activations: Activations;
  readonly layers: readonly number[];
  /** Codes that another backend has written for a layer; undefined when this backend is to compress it itself. */
  readonly codesFor: (layer: number) => Promise<LayerCodes | undefined>;
  /** Called with the codes of every layer this backend compressed. */
  readonly onCodes: (layer: number, codes: LayerCodes) => void;
  /** Called when no more codes will come, whatever happened. */
  readonly onEnd: () => void;
}

/** Runs a scheme over layers on one backend; one that the machine lacks is skipped with its reason. */
export async function runBackend(
  name: BackendName,
  scheme: Scheme,
  input: BackendInput,
  context: Context,
): Promise<BackendResult> {
  try {
    return await measureBackend(name, scheme, input, context);
  } finally {
    input.onEnd();
  }
}

async function measureBackend(
  name: BackendName,
  scheme: Scheme,
  { activations, layers, codesFor, onCodes }: BackendInput,
  context: Context,
): Promise<BackendResult> {
  const { target, precision, bar } = backends[name];
  const device = await openDevice(name, { checks: 'none' }, context).catch((error: unknown) => {
    const report = reportError(error);
    if (report.code !== 'missing-capability') throw error;
    return report;
  });
  if ('hint' in device) {
    context.progress(`${name}: skipped, ${device.message}`);
    return { backend: name, status: 'skipped', reason: device.message, hint: device.hint };
  }
  try {
    context.progress(`${name}: ${device.description}`);
    const [generated, generateMs] = await timed(() => generate(scheme, activations.model, target));
    const entries = generated.manifest.kernels.map(({ entry }) => entry).filter((entry) => !unused.includes(entry));
    const [kernels, compileMs] = await timed(() => LoadedKernels.load(device, generated, entries));
    context.progress(`${name}: ${entries.length} kernels compiled in ${Math.round(compileMs)} ms`);
    const results: LayerResult[] = [];
    for (const layer of layers) {
      const given = await codesFor(layer);
      const { result, codes } = await measureLayer(kernels, activations.layer(layer), given);
      if (!given) onCodes(layer, codes);
      const { encodeMs, attendMs, referenceMs, maxError } = result;
      const encode = given ? `codes of the ${given.from}` : `encode ${Math.round(encodeMs)} ms`;
      const times = `${encode}, attend ${Math.round(attendMs)} ms, reference ${Math.round(referenceMs)} ms`;
      context.progress(`${name}: layer ${layer}: ${times}, error ${maxError.toExponential(1)}`);
      results.push(result);
    }
    const sum = (of: (result: LayerResult) => number) => results.reduce((total, result) => total + of(result), 0);
    return {
      backend: name,
      status: 'ran',
      description: device.description,
      precision,
      layers: results,
      maxError: Math.max(...results.map(({ maxError }) => maxError)),
      bar,
      generateMs,
      compileMs,
      encodeMs: sum(({ encodeMs }) => encodeMs),
      attendMs: sum(({ attendMs }) => attendMs),
      referenceMs: sum(({ referenceMs }) => referenceMs),
    };
  } finally {
    await device.close();
  }
}

async function timed<T>(work: () => Promise<T>): Promise<[T, number]> {
  const started = performance.now();
  const result = await work();
  return [result, performance.now() - started];
}
