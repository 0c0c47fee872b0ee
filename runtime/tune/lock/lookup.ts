import type { TunableChoice } from '../../../codegen/generate.js';
import { KvforgeError } from '../../../dsl/errors.js';
import type { Geometry } from '../../../dsl/geometry.js';
import { exclusionOf, type Target } from '../../../dsl/stage.js';
import { stages } from '../../../dsl/stages/index.js';
import { nearestShape, type TunedSplits } from '../nearest.js';
import { parseShape, type ShapeClass } from '../shapeClass.js';
import { entryName, type LockEntry, targetName } from './format.js';

/** What kernels are wanted for. */
export interface Wanted {
  readonly scheme: string;
  readonly modelHash: string;
  readonly geometry: Geometry;
  readonly target: Target;
  readonly shape: ShapeClass;
  /** Name of the device; the first that the file has entries for if left out. */
  readonly device?: string;
}

/** Winners for a target. */
export interface Locked {
  /** Of the shape that is nearest to the one wanted, a stage each. */
  readonly entries: readonly LockEntry[];
  readonly choice: TunableChoice;
  /** Of the kernels of the choice for attention: their shapes' best splits. */
  readonly splits: readonly TunedSplits[];
}

/**
 * The winners of a lock file for a scheme, a model and a target; undefined where it has none for them.
 *
 * @throws KvforgeError `wrong-use` for tunables that the stages of this version do not have
 */
export function lookUp(entries: readonly LockEntry[], wanted: Wanted): Locked | undefined {
  const { scheme, modelHash, geometry, target, shape } = wanted;
  const name = targetName(target);
  const matching = entries
    .filter((each) => each.scheme === scheme && each.modelHash === modelHash && each.target === name)
    .sort((a, b) => (entryName(a) < entryName(b) ? -1 : 1));
  const device = wanted.device ?? matching[0]?.device;
  const ofDevice = matching.filter((each) => each.device === device);
  if (ofDevice.length === 0) return undefined;
  // Of several drivers the last by name: most are versions, and kernels compiled by the newest one are what runs.
  const driver = ofDevice
    .map((each) => each.driver)
    .sort(byVersion)
    .at(-1);
  const own = ofDevice.filter((each) => each.driver === driver);
  const chosen = stages.flatMap(({ name: stage }) => {
    const classes = own.filter((each) => each.stage === stage).map((entry) => ({ entry, ...parseShape(entry.shape) }));
    const nearest = nearestShape(classes, shape);
    return nearest ? [nearest.entry] : [];
  });
  for (const entry of chosen) checkTunables(entry, geometry, target);
  const attend = chosen.find(({ stage }) => stage === 'attend');
  const same = own.filter((each) => each.stage === 'attend' && attend !== undefined && sameKernels(each, attend));
  return {
    entries: chosen,
    choice: Object.fromEntries(chosen.map(({ stage, tunables }) => [stage, tunables])),
    splits: same.flatMap(({ shape: text, splits }) => (splits === undefined ? [] : [{ ...parseShape(text), splits }])),
  };
}

function byVersion(a: string, b: string): number {
  return a.localeCompare(b, 'en', { numeric: true });
}

/** The same tunables of another version of the text are other kernels. */
function sameKernels(a: LockEntry, b: LockEntry): boolean {
  const names = Object.keys(a.tunables);
  return (
    a.source === b.source &&
    names.length === Object.keys(b.tunables).length &&
    names.every((name) => a.tunables[name] === b.tunables[name])
  );
}

function checkTunables(entry: LockEntry, geometry: Geometry, target: Target): void {
  const stage = stages.find(({ name }) => name === entry.stage)!;
  const space = stage.tunables(target);
  const names = Object.keys(space);
  const refuse = (expected: string, received: string): never => {
    const hint = 'Run kvforge tune again, or pass --no-lockfile.';
    throw new KvforgeError('wrong-use', { at: `lock file, ${entryName(entry)}`, expected, received, hint });
  };
  const own = Object.keys(entry.tunables);
  if (own.length !== names.length || own.some((name) => !names.includes(name))) {
    refuse(`the tunables ${names.join(', ') || 'none'}`, own.join(', ') || 'none');
  }
  for (const [name, { values }] of Object.entries(space)) {
    const value = entry.tunables[name]!;
    if (!values.includes(value)) refuse(`${name} to be one of ${values.join(', ')}`, String(value));
  }
  const reason = exclusionOf(stage, geometry, target, entry.tunables);
  if (reason !== undefined) refuse('a configuration that fits', reason);
}
