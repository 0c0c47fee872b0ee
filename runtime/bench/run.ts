import type { GeneratedKernels } from '../../codegen/generate.js';
import type { Fp16Kernels } from '../../codegen/generateFp16.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { HeadGeometry } from '../../dsl/headGeometry.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Target } from '../../dsl/stage.js';
import type { Device } from '../device.js';
import { LoadedKernels } from '../kernels.js';
import type { Cache } from '../reference/index.js';
import { type ShapeClass, shapeText } from '../tune/shapeClass.js';
import { CompressedAttention } from './compressed.js';
import { tunablesByStage } from './contender.js';
import type { CudnnAttention } from './cudnn.js';
import { benchDecode, hasNoRoom, type Opener, reasonOf } from './decode.js';
import { benchEncode, type EncodeMeasured, encodePrompt } from './encode.js';
import { encodeRow } from './encodeRow.js';
import { ExactAttention } from './exact.js';
import { peakOperationsOf } from './known.js';
import { measureReadBandwidth } from './readBandwidth.js';
import { type Baseline, type Ceilings, rowsOf } from './rows.js';
import { type BenchDocument, type BenchRow, type BenchSkip, benchDocument, benchFormat } from './schema.js';
import { type TorchEncodeOptions, torchEncode } from './torchEncode.js';

/** What a document says of where it comes from. */
export type Origin = Pick<BenchDocument, 'kvforge' | 'commit' | 'command'>;

/** A scheme that takes part. */
export interface BenchScheme {
  readonly name: string;
  /** Its kernels, as they suit a shape. */
  readonly generate: (shape: ShapeClass) => Promise<GeneratedKernels>;
}

export interface BenchInput {
  readonly device: Device;
  readonly model: ModelShape;
  readonly schemes: readonly BenchScheme[];
  /** Attention without compression, by kvforge's own kernel; or why there is none. */
  readonly fp16: Fp16Kernels | KvforgeError;
  /** cuDNN, or why it does not take part; kernels are compiled while it starts. */
  readonly cudnn: Promise<CudnnAttention | { readonly missing: string }>;
  readonly shapes: readonly ShapeClass[];
  /** Times the encoding of a prompt of as many tokens too; beside PyTorch, where a Python is given. */
  readonly encode?: { readonly tokens: number; readonly torch: TorchEncodeOptions | undefined } | undefined;
  readonly baseline: Baseline;
  readonly samples: number;
  readonly seed: number;
  /** A shape is not begun when one before it took longer than what is left of this. */
  readonly budgetMs: number;
  readonly origin: Origin;
  readonly progress: (line: string) => void;
}

/** Samples of the read rate. */
const ceilingSamples = 10;
/** An encode takes a hundred times as long as an attention. */
const encodeSamples = 5;

/** Everything that was asked for, as one document. */
export async function runBench(input: BenchInput): Promise<BenchDocument> {
  const { device, model, baseline, seed, progress, origin } = input;
  const started = performance.now();
  checkNames(input.schemes);
  if (model.latent) {
    const expected = 'a model with keys and values, as attention over latents is not measured beside others yet';
    const hint = 'kvforge verify holds kernels of latents to float64.';
    throw new KvforgeError('wrong-use', { at: 'model', expected, received: model.name, hint });
  }
  const openers = [...input.schemes.map((scheme) => compressedOpener(scheme, input)), exactOpener(input)];
  // What cannot be loaded says so again when it is opened.
  const [cudnn] = await Promise.all([
    input.cudnn,
    Promise.allSettled(openers.map(({ load }) => load(input.shapes[0]!))),
  ]);
  progress('measuring how fast the device reads');
  const read = await measureReadBandwidth(device, ceilingSamples);
  const peak = peakOperationsOf(device.identity.name);
  const ceilings: Ceilings = { bytesPerSecond: read.bytesPerSecond, operations: peak };
  const attended = await attendAll({ ...input, cudnn, openers }, ceilings, started + input.budgetMs);
  const encoded = await encodeAll(input, ceilings);
  const { identity, kind, clock } = device;
  // Parsed, so that no document is written that its own schema would refuse.
  return benchDocument.parse({
    format: benchFormat,
    ...origin,
    model: model.name,
    device: identity.name,
    driver: identity.driver,
    kind,
    architecture: identity.architecture ?? null,
    clock,
    cacheBytes: identity.cacheBytes ?? null,
    seed,
    baseline,
    cudnn: 'missing' in cudnn ? { missing: cudnn.missing } : cudnn.versions,
    ceiling: {
      gbps: read.bytesPerSecond / 1e9,
      spread: read.timing.spread,
      bytes: read.bytes,
      operations: peak ?? null,
    },
    rows: [...attended.rows, ...encoded.rows],
    skipped: [...attended.skipped, ...encoded.skipped],
    ms: performance.now() - started,
  } satisfies BenchDocument);
}

/**
 * Figures are told apart by these names.
 *
 * @throws KvforgeError `wrong-use` for a name that comes twice, or is that of something else
 */
export function checkNames(schemes: readonly { readonly name: string }[]): void {
  const seen = new Set(['fp16', 'cudnn', 'torch']);
  for (const { name } of schemes) {
    if (seen.has(name)) {
      throw new KvforgeError('wrong-use', {
        at: 'scheme',
        expected: 'schemes with names of their own, other than fp16, cudnn and torch',
        received: name,
        hint: 'Name each scheme once, or give it another name.',
      });
    }
    seen.add(name);
  }
}

interface Found {
  readonly rows: readonly BenchRow[];
  readonly skipped: readonly BenchSkip[];
}

interface Started extends Omit<BenchInput, 'cudnn'> {
  readonly cudnn: Awaited<BenchInput['cudnn']>;
  readonly openers: readonly LoadingOpener[];
}

/** Its kernels may be loaded before the first shape is opened. */
interface LoadingOpener extends Opener {
  readonly load: (shape: ShapeClass) => Promise<unknown>;
}

async function attendAll(input: Started, ceilings: Ceilings, deadline: number): Promise<Found> {
  const { device, model, shapes, openers, seed, samples, baseline, cudnn, progress } = input;
  const torch = 'missing' in cudnn ? undefined : cudnn;
  const rows: BenchRow[] = [];
  const skipped: BenchSkip[] = [];
  let longest = 0;
  for (const shape of shapes) {
    const from = performance.now();
    if (longest > deadline - from) {
      const left = Math.max(0, Math.floor((deadline - from) / 1000));
      const reason = `out of time: ${left} s of the budget are left`;
      const stage = 'attend' as const;
      skipped.push(...openers.map(({ name }) => ({ scheme: name, stage, shape: shapeText(shape), reason })));
      continue;
    }
    const result = await benchDecode({ device, model, openers, cudnn: torch, seed, samples, progress }, shape);
    rows.push(...rowsOf(result.measured, ceilings, baseline));
    skipped.push(...result.skipped);
    // A run that is cut short leaves its figures on the terminal.
    const times = result.measured.map(({ scheme, timing }) => `${scheme} ${timing.us.toFixed(1)} us`);
    if (times.length > 0) progress(`${shapeText(shape)}: ${times.join(', ')}`);
    longest = Math.max(longest, performance.now() - from);
  }
  return { rows, skipped };
}

/** What float arithmetic of a target's kernels may err, over the largest output. */
export function errorBar(target: Target): number {
  const halves = target.language === 'cuda' ? target.tensorCores : target.f16;
  return halves ? 2e-3 : 1e-5;
}

function compressedOpener(scheme: BenchScheme, { device, seed }: BenchInput): LoadingOpener {
  // Shapes that are tuned alike share their kernels.
  const loaded = new Map<string, Promise<LoadedKernels>>();
  const decoded = new Map<number, Cache>();
  const load = async (shape: ShapeClass) => {
    const generated = await scheme.generate(shape);
    const descriptors = generated.manifest.kernels.filter(({ stage }) => stage === 'attend');
    const tunables = tunablesByStage(descriptors);
    const key = JSON.stringify(tunables);
    const entries = descriptors.map(({ entry }) => entry);
    const kernels = loaded.get(key) ?? LoadedKernels.load(device, generated, entries);
    loaded.set(key, kernels);
    return { kernels: await kernels, tunables, bar: errorBar(generated.target) };
  };
  const open = async (shape: ShapeClass) => {
    const { kernels, ...known } = await load(shape);
    return CompressedAttention.open(kernels, { shape, seed, decoded, ...known });
  };
  return { name: scheme.name, load, open };
}

/** Where there is no fp16 kernel for the target, loading it says why. */
function exactOpener({ device, seed, fp16 }: BenchInput): LoadingOpener {
  let loaded: Promise<LoadedKernels<HeadGeometry>> | undefined;
  const load = async () => {
    if (fp16 instanceof KvforgeError) throw fp16;
    loaded ??= LoadedKernels.load(device, fp16);
    return { kernels: await loaded, tunables: tunablesByStage(fp16.manifest.kernels), bar: errorBar(fp16.target) };
  };
  const open = async (shape: ShapeClass) => {
    const { kernels, ...known } = await load();
    return ExactAttention.open(kernels, { shape, seed, ...known });
  };
  return { name: 'fp16', load, open };
}

async function encodeAll({ encode, ...input }: BenchInput, ceilings: Ceilings): Promise<Found> {
  const rows: BenchRow[] = [];
  const skipped: BenchSkip[] = [];
  if (encode === undefined) return { rows, skipped };
  const { device, seed, samples, progress } = input;
  const shape = { sequences: 1, tokens: encode.tokens };
  for (const { name: scheme, generate } of input.schemes) {
    progress(`${shapeText(shape)}: encoding with ${scheme}`);
    const generated = await generate(shape);
    const { geometry, manifest } = generated;
    const { cacheBytes } = device.identity;
    const prompt = encodePrompt(geometry, encode.tokens, seed);
    const kernels = await LoadedKernels.load(device, generated);
    let measured: EncodeMeasured;
    try {
      measured = await benchEncode(kernels, prompt, { seed, samples: Math.min(samples, encodeSamples) });
    } catch (error) {
      if (!hasNoRoom(error)) throw error;
      skipped.push({ scheme, stage: 'encode', shape: shapeText(shape), reason: reasonOf(error) });
      continue;
    }
    const encoded = { scheme, shape, measured, tunables: tunablesByStage(manifest.kernels) };
    try {
      if (encode.torch === undefined) throw noDevice;
      if (geometry.family !== 'low-rank') throw noSteps;
      progress(`${shapeText(shape)}: encoding with torch`);
      const beside = await torchEncode(geometry, device.identity, prompt, encode.torch);
      rows.push(encodeRow({ ...encoded, beside }, geometry, ceilings, cacheBytes));
    } catch (error) {
      rows.push(encodeRow({ ...encoded, beside: undefined }, geometry, ceilings, cacheBytes));
      const reason = reasonOf(error);
      // The same of every scheme is said once.
      if (skipped.some((before) => before.reason === reason)) continue;
      skipped.push({ scheme: 'torch', stage: 'encode', shape: shapeText(shape), reason });
    }
  }
  return { rows, skipped };
}

const noDevice = new Error('no CUDA device');
const noSteps = new Error('bench/encode_torch.py has the steps of schemes with low-rank keys alone');
