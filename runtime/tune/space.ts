import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { chooseTunables, combinations, exclusionOf, type Target, type TunableSpace } from '../../dsl/stage.js';
import type { GeometryStage } from '../../dsl/stages/index.js';

/** Tunables by name. */
export type NamedTunables = Readonly<Record<string, number>>;

/** One configuration of a stage: what its text is generated with and, for attention, how many splits it is launched with. */
export interface Candidate {
  /** Place in the order of the search space, the defaults first: of equally fast ones the first is taken. */
  readonly index: number;
  readonly tunables: NamedTunables;
  readonly splits?: number;
}

/** A configuration that cannot be, and why. */
export interface Pruned {
  readonly tunables: NamedTunables;
  readonly reason: string;
}

export interface SearchSpace {
  readonly candidates: readonly Candidate[];
  readonly pruned: readonly Pruned[];
}

/**
 * Every combination of a stage's tunables that meets its constraints and has room on the target, with every number of
 * splits; what does not is kept with the reason.
 *
 * @param options `splits` to try with each of them, the default first; left out where a stage is not launched in splits.
 * `tradeAccuracy` also tries what gives accuracy for time
 */
export function searchSpace(
  stage: GeometryStage,
  geometry: Geometry,
  target: Target,
  { splits, tradeAccuracy }: { readonly splits?: readonly number[] | undefined; readonly tradeAccuracy: boolean },
): SearchSpace {
  const candidates: Candidate[] = [];
  const pruned: Pruned[] = [];
  const space = stage.tunables(target);
  // Where the most accurate values have no room, kernels are less accurate without tuning too.
  const usual = tradeAccuracy ? undefined : usualTunables(stage, geometry, target);
  for (const tunables of combinations(space)) {
    const reason = (usual && accuracyTraded(space, tunables, usual)) ?? exclusionOf(stage, geometry, target, tunables);
    if (reason !== undefined) {
      pruned.push({ tunables, reason });
      continue;
    }
    for (const each of splits ?? [undefined]) {
      candidates.push({ index: candidates.length, tunables, ...(each === undefined ? {} : { splits: each }) });
    }
  }
  return { candidates, pruned };
}

/** What kernels are generated with where nothing is chosen; undefined where nothing can be. */
function usualTunables(stage: GeometryStage, geometry: Geometry, target: Target): NamedTunables | undefined {
  try {
    return chooseTunables(stage, geometry, target, {});
  } catch (error) {
    if (error instanceof KvforgeError && error.code === 'does-not-fit') return undefined;
    throw error;
  }
}

/** The tunable that gives accuracy for time here, more than kernels do without tuning. */
function accuracyTraded(space: TunableSpace, tunables: NamedTunables, usual: NamedTunables): string | undefined {
  const name = Object.keys(space).find((each) => {
    const { tradesAccuracy, values } = space[each]!;
    return tradesAccuracy && values.indexOf(tunables[each]!) > values.indexOf(usual[each]!);
  });
  return name === undefined
    ? undefined
    : `${name} ${tunables[name]} trades accuracy for time (--trade-accuracy tries it)`;
}

/** A configuration for people: `warps 8, basisBytes 1, splits 16`. */
export function candidateText({
  tunables,
  splits,
}: {
  readonly tunables: NamedTunables;
  readonly splits?: number | undefined;
}): string {
  const parts = Object.entries(tunables).map(([name, value]) => `${name} ${value}`);
  return [...parts, ...(splits === undefined ? [] : [`splits ${splits}`])].join(', ') || 'no tunables';
}
