import type { TunableChoice } from '../codegen/generate.js';
import { KvforgeError } from '../dsl/errors.js';
import { geometryOf } from '../dsl/geometry.js';
import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import type { Target } from '../dsl/stage.js';
import { changedEntries } from '../runtime/tune/lock/changed.js';
import { lockName, readLock } from '../runtime/tune/lock/file.js';
import { modelHash, targetName } from '../runtime/tune/lock/format.js';
import { type Locked, lookUp } from '../runtime/tune/lock/lookup.js';
import { parseShape } from '../runtime/tune/shapeClass.js';
import type { Context } from './output.js';

/** Options of commands that use what was tuned. */
export interface LockOptions {
  /** A file; false for none; the one of the folder, if there is one, where it is left out. */
  readonly lockfile?: string | false;
  readonly shape?: string;
}

/** What kernels are generated for where no shape is asked for: one sequence of a usual length. */
const usualShape = '1x8192';

/**
 * The lock file that the options name, or that the folder has; undefined where there is none.
 *
 * @throws KvforgeError for one that is damaged, or that was asked for and is not there
 */
export async function openLock({ lockfile }: LockOptions): Promise<Lock | undefined> {
  if (lockfile === false) return undefined;
  const path = lockfile ?? lockName;
  const entries = await readLock(path);
  if (entries !== undefined) return { path, entries };
  if (lockfile === undefined) return undefined;
  throw new KvforgeError('wrong-use', {
    at: '--lockfile',
    expected: 'a file',
    received: `${path}, which does not exist`,
    hint: 'Run kvforge tune, or leave the option out.',
  });
}

interface Lock {
  readonly path: string;
  readonly entries: NonNullable<Awaited<ReturnType<typeof readLock>>>;
}

/**
 * The tunables that a lock file has for kernels, with those that the user names: a stage of which the user names any is
 * left to the user. Says on stderr which entries were taken, or that there are none for the target.
 *
 * @param device name of the device that they will run on, where it is known
 * @throws KvforgeError for a lock file that is damaged, or that was asked for and is not there
 */
export async function tunedChoice(
  context: Pick<Context, 'progress'>,
  options: LockOptions,
  kernels: { readonly scheme: Scheme; readonly model: ModelShape; readonly target: Target; readonly device?: string },
  named: TunableChoice,
): Promise<{ readonly choice: TunableChoice }> {
  const untuned = { choice: named };
  const shape = parseShape(options.shape ?? usualShape, '--shape');
  const lock = await openLock(options);
  if (lock === undefined) return untuned;
  const { path, entries } = lock;
  const { scheme, model, target, device } = kernels;
  const geometry = geometryOf(scheme, model);
  const wanted = { scheme: scheme.name, modelHash: await modelHash(model), geometry, target, shape };
  const locked = lookUp(entries, { ...wanted, ...(device === undefined ? {} : { device }) });
  if (locked === undefined) {
    const where = `${targetName(target)}${device === undefined ? '' : ` on ${device}`}`;
    context.progress(
      `${path} has nothing for ${scheme.name} on ${model.name}, ${where}: kernels have their default tunables`,
    );
    return untuned;
  }
  if (device === undefined) reportDevice(context, path, locked);
  await report(context, path, locked, kernels, named);
  return { choice: { ...locked.choice, ...named } };
}

/** Where nobody said which device's winners are wanted, the choice is told. */
function reportDevice(context: Pick<Context, 'progress'>, path: string, { device, standsIn, others }: Locked): void {
  if (others.length > 0) context.progress(`${path}: winners of ${device} are taken, not those of ${others.join(', ')}`);
  if (standsIn) {
    context.progress(`${path}: ${device} is no GPU: its times say nothing of one; --no-lockfile leaves them out`);
  }
}

async function report(
  context: Pick<Context, 'progress'>,
  path: string,
  { entries }: Locked,
  kernels: { readonly scheme: Scheme; readonly model: ModelShape; readonly target: Target },
  named: TunableChoice,
): Promise<void> {
  const changed = await changedEntries(entries, kernels);
  for (const entry of entries) {
    const { stage, shape, device, driver, tunables, warm } = entry;
    if (named[stage] !== undefined) {
      context.progress(`${stage}: as --set names it, not as in ${path}`);
      continue;
    }
    const chosen = Object.entries(tunables).map(([name, value]) => `${name} ${value}`);
    const cached = warm ? ', timed on inputs in a cache' : '';
    const old = changed.includes(entry) ? '; its text has changed since, so tune again' : '';
    context.progress(`${stage}: ${chosen.join(', ')} (${path}: ${device}, driver ${driver}, ${shape}${cached}${old})`);
  }
}
