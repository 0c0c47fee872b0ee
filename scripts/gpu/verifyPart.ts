import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import * as dsl from '../../dsl/index.js';
import { geometryOf, KvforgeError, type ModelShape, presetModel, type Scheme } from '../../dsl/index.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { type VerifyFailure, verifyScheme } from '../../runtime/verify/index.js';
import { cases as testCases } from '../../test/stages/harness.js';
import { backendOf } from './openDevice.js';
import { repeating, type Stability } from './stability.js';

/** Every preset, as the package exports them. */
export const schemes: Readonly<Record<string, Scheme>> = Object.fromEntries(
  Object.values(dsl as Readonly<Record<string, unknown>>).flatMap((exported) => {
    const isScheme = typeof exported === 'object' && exported !== null && 'keys' in exported && 'stream' in exported;
    return isScheme ? [[(exported as Scheme).name, exported as Scheme] as const] : [];
  }),
);

/** Whether a scheme is for a model at all: heads of 96 channels have no blocks of 64. */
export function fits(scheme: Scheme, model: ModelShape): boolean {
  try {
    geometryOf(scheme, model);
    return true;
  } catch (error) {
    if (error instanceof KvforgeError && error.code === 'invalid-scheme') return false;
    throw error;
  }
}

/** Shapes of the property tests, and real ones: GQA 4 and 7, no GQA with heads of 96, capped scores with heads of 256. */
export const models: Readonly<Record<string, ModelShape>> = Object.fromEntries(
  [
    ...testCases.map(({ model }) => model),
    ...(['llama-3.1-8b', 'qwen2.5-7b', 'phi-3-mini', 'gemma-2-9b'] as const).map((name) => presetModel(name)),
  ].map((model) => [model.name, model]),
);

/** Where kernels are launched again and again: a narrow shape and a real one. */
export const repeatedModels: readonly string[] = ['9-3-64-r32', 'llama-3.1-8b'];

/** One scheme on one model. */
export interface Part {
  readonly device: string;
  readonly scheme: string;
  readonly model: string;
  readonly cases: number;
  readonly seed: number;
  /** Launches of every kernel on the same input; 0 leaves the check out. */
  readonly launches: number;
  /** Seconds after which no further case is begun, or that the launches of all kernels may take together. */
  readonly seconds: number;
}

export interface PartResult extends Part {
  readonly description: string;
  readonly target: string;
  /** Cases that were made. */
  readonly made: number;
  readonly failed: number;
  readonly skipped: number;
  readonly maxError: number;
  readonly failures: readonly VerifyFailure[];
  readonly notes: readonly string[];
  readonly stability: readonly Stability[];
  readonly ms: number;
}

export async function runPart(part: Part): Promise<PartResult> {
  const started = performance.now();
  const [scheme, model] = [schemes[part.scheme]!, models[part.model]!];
  const backend = backendOf(part.device);
  const device = await backend.open();
  try {
    const target = backend.target(device);
    const generated = await generate(scheme, model, target);
    const stability = part.launches > 0 ? await stabilityOf(device, generated, part) : [];
    const own = { ...part, description: device.description, target: JSON.stringify(target), stability };
    const { cases, seed, seconds } = part;
    const took = () => ({ ms: Math.round(performance.now() - started) });
    if (cases === 0) return { ...own, made: 0, failed: 0, skipped: 0, maxError: 0, failures: [], notes: [], ...took() };
    const result = await verifyScheme(device, scheme, model, { cases, seed, seconds, generated });
    const { failed, skipped, maxError, failures, notes } = result;
    const done = { made: result.cases, failed, skipped, maxError, failures: failures.slice(0, 20), notes };
    return { ...own, ...done, ...took() };
  } finally {
    await device.close();
  }
}

/** Every kernel of a prompt, of tokens after it, of attention, of decoding and of copies, each again and again. */
async function stabilityOf(
  device: Device,
  generated: GeneratedKernels,
  { launches, seconds }: Part,
): Promise<readonly Stability[]> {
  const found = new Map<string, Stability>();
  const kernels = await LoadedKernels.load(
    repeating(device, { launches, seconds: seconds / generated.manifest.kernels.length }, found),
    generated,
  );
  const g = geometryOf(generated.geometry.scheme, generated.geometry.model);
  const halves = (count: number, seed: number): Uint16Array => {
    const random = seededRandom(seed);
    return halfBits(Float64Array.from({ length: count }, () => normalFrom(random)));
  };
  const tokens = g.scheme.sinks + g.scheme.window + 60;
  const cache = KvCache.open(kernels, { sequences: 2, tokens, generated: 4 });
  const queries = g.weighted ? { queries: halves(tokens * g.heads * g.headDim, 3) } : {};
  await cache.prefill(0, {
    keys: halves(tokens * g.width, 1),
    values: halves(tokens * g.width, 2),
    tokens,
    ...queries,
  });
  await cache.fork(0, 1);
  await cache.append(halves(2 * g.width, 4), halves(2 * g.width, 5));
  await cache.attend(halves(2 * g.heads * g.headDim, 6), { splits: 4 });
  await cache.decompress(0);
  await cache.release();
  const missing = generated.manifest.kernels.filter(({ entry }) => !found.has(entry)).map(({ entry }) => entry);
  return [...found.values(), ...missing.map((entry) => ({ entry, launches: 0, differing: 0, bytes: 0 }))];
}
