import type { TunableChoice } from '../../../codegen/generate.js';
import { KvforgeError } from '../../../dsl/errors.js';
import type { Geometry } from '../../../dsl/geometry.js';
import { exclusionOf, type Target } from '../../../dsl/stage.js';
import { stagesOf } from '../../../dsl/stages/index.js';
import { namesSoftware } from '../../webgpu/adapter.js';
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
  /** Name of the device; if left out, the first GPU that the file has entries for, else the first that stands in for one. */
  readonly device?: string;
}

/** Winners for a target. */
export interface Locked {
  /** Of the shape that is nearest to the one wanted, a stage each. */
  readonly entries: readonly LockEntry[];
  readonly choice: TunableChoice;
  /** The device that they are of: the one that was asked for, or else the one taken. */
  readonly device: string;
  /**
   * It is the emulator or a software adapter, whose times say nothing of a GPU. Where no device was asked for, such are
   * taken only if there are no others.
   */
  readonly standsIn: boolean;
  /** Further devices with entries for the same. */
  readonly others: readonly string[];
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
  const gpus = matching.filter((each) => !standsIn(each));
  const eligible = wanted.device === undefined && gpus.length > 0 ? gpus : matching;
  const device = wanted.device ?? eligible[0]?.device;
  const ofDevice = eligible.filter((each) => each.device === device);
  if (device === undefined || ofDevice.length === 0) return undefined;
  // Of several drivers the last by name: most are versions, and kernels compiled by the newest one are what runs.
  const driver = ofDevice
    .map((each) => each.driver)
    .sort(byVersion)
    .at(-1);
  const own = ofDevice.filter((each) => each.driver === driver);
  const chosen = stagesOf[geometry.family].flatMap(({ name: stage }) => {
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
    device,
    standsIn: own.some(standsIn),
    others: [...new Set(matching.map((each) => each.device))].filter((other) => other !== device),
    splits: same.flatMap(({ shape: text, splits }) => (splits === undefined ? [] : [{ ...parseShape(text), splits }])),
  };
}

/** Whether an entry is of a CPU that runs kernels in the place of a GPU. WebGPU may name software in the driver alone. */
function standsIn({ device, driver }: LockEntry): boolean {
  return device === 'CPU emulator of CUDA' || namesSoftware(`${device} ${driver}`);
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
  const stage = stagesOf[geometry.family].find(({ name }) => name === entry.stage)!;
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
