import { KvforgeError } from '../../../dsl/errors.js';
import { geometryOf } from '../../../dsl/geometry.js';
import type { ModelShape } from '../../../dsl/model.js';
import type { Scheme } from '../../../dsl/scheme.js';
import type { Target } from '../../../dsl/stage.js';
import type { ShapeClass } from '../shapeClass.js';
import { changedEntries } from './changed.js';
import { readLock } from './file.js';
import { type LockEntry, modelHash } from './format.js';
import { type Locked, lookUp } from './lookup.js';

/** What tuned kernels are wanted for. */
export interface TunedFor {
  readonly scheme: Scheme;
  readonly model: ModelShape;
  readonly target: Target;
  /** Sequences of the batch and tokens of each; one of 8192 tokens if left out. */
  readonly shape?: ShapeClass;
  /**
   * Name of the device, as `Device.identity` has it; if left out, the first GPU that the file has winners for. Those of the
   * emulator or a software adapter are taken only where there are no others: `standsIn` says so.
   */
  readonly device?: string;
}

/** Winners, and how far they can be relied on. */
export interface Tuned extends Locked {
  /** Of `entries`, those whose kernels have other texts now than when they were timed: they fit, and may not be the fastest. */
  readonly changed: readonly LockEntry[];
}

/**
 * The winners of a lock file that `kvforge tune` wrote: `choice` is for `generate`, `splits` for `LoadedKernels.load`.
 * Undefined where the file has none for the scheme, the model and the target.
 *
 * @throws KvforgeError `wrong-use` for a file that is not there or has tunables of another version, `invalid-input` for one
 * that is damaged, with the line
 * @example
 * await writeFile('kvforge.lock.json', '{ "format": 1 }');
 * const tuned = await readTuned('kvforge.lock.json', { scheme: shard, model, target: defaultTargets[device.target] });
 * const generated = await generate(shard, model, defaultTargets[device.target], tuned?.choice);
 * const loaded = await LoadedKernels.load(device, generated, ['decompress'], { splits: tuned?.splits ?? [] });
 * loaded.splits; // []
 */
export async function readTuned(path: string, wanted: TunedFor): Promise<Tuned | undefined> {
  const entries = await readLock(path);
  if (entries === undefined) {
    const hint = 'Run kvforge tune, which writes it.';
    throw new KvforgeError('wrong-use', { at: path, expected: 'a lock file', received: 'no such file', hint });
  }
  const { scheme, model, target, shape = { sequences: 1, tokens: 8192 }, device } = wanted;
  const named = { scheme: scheme.name, modelHash: await modelHash(model), geometry: geometryOf(scheme, model) };
  const locked = lookUp(entries, { ...named, target, shape, ...(device === undefined ? {} : { device }) });
  if (locked === undefined) return undefined;
  return { ...locked, changed: await changedEntries(locked.entries, { scheme, model, target }) };
}
