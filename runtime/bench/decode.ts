import { KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import { scoped } from '../cache/scoped.js';
import type { Device, DeviceBuffer } from '../device.js';
import { type ShapeClass, shapeText } from '../tune/shapeClass.js';
import { type Contender, isCold } from './contender.js';
import type { CudnnAttention, CudnnPrepared } from './cudnn.js';
import { reasonAgainstBaseline } from './known.js';
import type { Measured } from './rows.js';
import { timingOf } from './samples.js';
import type { BenchRow, BenchSkip } from './schema.js';
import { enoughRounds, inTurn, type Timed } from './timed.js';

/** Something that can be prepared for a shape. */
export interface Opener {
  readonly name: string;
  open(shape: ShapeClass): Promise<Contender>;
}

export interface DecodeBench {
  readonly device: Device;
  readonly model: ModelShape;
  readonly openers: readonly Opener[];
  /** Why cuDNN does not take part, where it does not. */
  readonly cudnn: CudnnAttention | undefined;
  readonly seed: number;
  /** Samples of each. */
  readonly samples: number;
  readonly progress: (line: string) => void;
}

export interface DecodeResult {
  readonly measured: readonly Measured[];
  readonly skipped: readonly BenchSkip[];
}

/** Samples that decide between numbers of splits. */
const sweepSamples = 3;
/** What a number of splits must gain over those before it, to be chosen. */
const leastGain = 0.01;

/**
 * Times attention of everything that takes part, at one shape: all prepared side by side, then in turn.
 *
 * @throws what a device throws, except that a contender the device has no room for is skipped, and so is a cuDNN that fails
 */
export async function benchDecode(bench: DecodeBench, shape: ShapeClass): Promise<DecodeResult> {
  const { device, openers, samples, progress } = bench;
  const skipped: BenchSkip[] = [];
  const skip = (scheme: string, error: unknown) => {
    skipped.push({ scheme, stage: 'attend', shape: shapeText(shape), reason: reasonOf(error) });
  };
  const opened: Contender[] = [];
  try {
    return await scoped(async (owned) => {
      const ready: Ready[] = [];
      for (const { name, open } of openers) {
        progress(`${shapeText(shape)}: preparing ${name}`);
        try {
          const contender = await open(shape);
          opened.push(contender);
          ready.push(await readied(device, contender, owned));
        } catch (error) {
          if (!hasNoRoom(error)) throw error;
          skip(name, error);
        }
      }
      const torch = await prepareCudnn(bench, shape, skip);
      const all = [...ready, ...(torch ? [torch] : [])];
      if (all.length === 0) return { measured: [], skipped };
      progress(`${shapeText(shape)}: ${samples} samples of ${all.map(({ name }) => name).join(', ')}`);
      const taken = await inTurn(all, samples);
      const measured: Measured[] = [];
      for (const { contender, splits, sweep } of ready) {
        const { name: scheme, tunables, copies, cold, bytes, bytesRead, operations } = contender;
        const facts = { scheme, stage: 'attend', shape, tunables, copies, cold, bytes, bytesRead, operations } as const;
        progress(`${shapeText(shape)}: holding ${scheme} to float64`);
        const timing = timingOf(taken.get(scheme)!);
        measured.push({ ...facts, splits, sweep, timing, checked: await contender.check(splits) });
      }
      if (torch && torch.failure === undefined) {
        measured.push(cudnnMeasured(bench, shape, torch, taken.get(torch.name)!));
      }
      if (torch?.failure !== undefined) skip(torch.name, torch.failure);
      return { measured, skipped };
    });
  } finally {
    for (const contender of opened) contender.release();
  }
}

/** A contender with its launches prepared. */
interface Ready extends Timed {
  readonly contender: Contender;
  readonly splits: number;
  readonly sweep: BenchRow['sweep'];
}

async function readied(device: Device, contender: Contender, owned: DeviceBuffer[]): Promise<Ready> {
  const { splits, sweep } = await bestSplits(device, contender);
  const lists = contender.lists(splits, owned);
  const rounds = await enoughRounds(device, lists);
  const sample = (count: number) => device.time(lists, { samples: count, rounds });
  return { name: contender.name, sample, contender, splits, sweep };
}

/** cuDNN for one shape. What is wrong with it must not end the measurement of the others. */
interface TorchReady extends Timed, CudnnPrepared {
  readonly failure: unknown;
}

async function prepareCudnn(
  { cudnn, model, seed, progress }: DecodeBench,
  shape: ShapeClass,
  skip: (scheme: string, error: unknown) => void,
): Promise<TorchReady | undefined> {
  if (cudnn === undefined) return undefined;
  progress(`${shapeText(shape)}: preparing cudnn`);
  let prepared: CudnnPrepared;
  try {
    prepared = await cudnn.prepare(model, shape, seed);
  } catch (error) {
    skip(cudnn.name, error);
    return undefined;
  }
  let failure: unknown;
  const sample = async (count: number): Promise<readonly number[]> => {
    if (failure !== undefined) return [];
    return cudnn.sample(count).catch((error: unknown) => {
      failure = error;
      return [];
    });
  };
  return {
    ...{ name: cudnn.name, sample, ...prepared },
    get failure() {
      return failure;
    },
  };
}

/** What cuDNN must hold to float64: its products are of f16 too. */
const cudnnBar = 2e-3;

function cudnnMeasured(
  { device, model }: DecodeBench,
  shape: ShapeClass,
  { copies, bytes, maxError }: TorchReady,
  samples: readonly number[],
): Measured {
  const timing = timingOf(samples);
  const noBaseline = reasonAgainstBaseline(device.identity.name, model, shape, timing.us);
  const checked = { maxError, bar: cudnnBar, what: 'query heads of KV head 0, last sequence; by torch in float64' };
  const operations = shape.sequences * shape.tokens * model.heads * model.headDim * 4;
  const cold = isCold(copies * bytes, device.identity.cacheBytes);
  const facts = { scheme: 'cudnn', stage: 'attend', shape, copies, cold, bytes, bytesRead: bytes, operations } as const;
  return { ...facts, timing, checked, ...(noBaseline === undefined ? {} : { noBaseline }) };
}

/** Tries every number of splits; a later one is taken if it is faster by more than noise. */
async function bestSplits(device: Device, contender: Contender): Promise<Pick<Ready, 'splits' | 'sweep'>> {
  const [only, ...others] = contender.splits;
  if (others.length === 0) return { splits: only!, sweep: [] };
  const sweep: { splits: number; us: number }[] = [];
  let noRoom: unknown;
  for (const splits of contender.splits) {
    try {
      const us = await scoped(async (owned) => {
        const lists = contender.lists(splits, owned);
        const rounds = await enoughRounds(device, lists);
        return timingOf(await device.time(lists, { samples: sweepSamples, rounds })).us;
      });
      sweep.push({ splits, us });
    } catch (error) {
      // More splits have more partial results.
      if (!hasNoRoom(error)) throw error;
      noRoom = error;
    }
  }
  if (sweep.length === 0) throw noRoom;
  const best = sweep.reduce((before, each) => (each.us < before.us * (1 - leastGain) ? each : before));
  return { splits: best.splits, sweep };
}

export function hasNoRoom(error: unknown): boolean {
  return error instanceof KvforgeError && error.code === 'does-not-fit';
}

/** The reason without the hint, which is for who waits at the terminal. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof KvforgeError)) return error instanceof Error ? error.message : String(error);
  const { at, expected, received } = error.parts;
  return `${at}: expected ${expected}, got ${received}`;
}
