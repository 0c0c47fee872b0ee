import type { Assets } from '../../codegen/assets.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { ModelShape } from '../../dsl/model.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Target } from '../../dsl/stage.js';
import { type GeometryStage, stageNames, stagesOf } from '../../dsl/stages/index.js';
import { type PlannedSpace, planSpace, stageContext } from './candidates.js';
import type { Measurer } from './child.js';
import { chooseWinner, type Ranked } from './choose.js';
import type { DeviceFacts } from './protocol.js';
import { type HistoryPoint, type Searched, search, type Untried } from './search.js';
import { type ShapeClass, shapeText } from './shapeClass.js';
import { candidateText, type NamedTunables } from './space.js';
import { rankCorrelation } from './statistics.js';
import type { TimingStore } from './store.js';

/** Stages that are measured: what reads a cache, then what makes one. The others are copies, seldom asked for, or have one configuration. */
const measuredStages = ['attend', 'decompress'] as const;
const notMeasured: readonly string[] = ['exact', 'append', 'copy', 'mass'];

/** Every stage that can be tuned, attention first. */
export const tunedStages: readonly string[] = [
  ...measuredStages,
  ...stageNames.filter((name) => !(measuredStages as readonly string[]).includes(name)),
].filter((name) => !notMeasured.includes(name));

export interface TuneRequest {
  readonly scheme: Scheme;
  readonly model: ModelShape;
  readonly target: Target;
  /** Of `tunedStages`. */
  readonly stages: readonly string[];
  readonly shapes: readonly ShapeClass[];
  readonly budgetMs: number;
  /** One candidate that takes longer counts as hung. */
  readonly candidateMs: number;
  readonly retry: boolean;
  readonly exhaustive: boolean;
  /** Also tries values of tunables that give accuracy for time, within what the check allows. */
  readonly tradeAccuracy: boolean;
  /** Texts to compile at once. */
  readonly compileAhead: number;
}

export interface TuneTools {
  readonly assets: Assets;
  readonly facts: DeviceFacts;
  readonly measurer: Measurer;
  readonly store: TimingStore;
  /** Milliseconds of a steady clock. */
  readonly now: () => number;
  readonly progress: (line: string) => void;
}

/** A configuration and its time. */
export interface TimedConfiguration {
  readonly tunables: NamedTunables;
  readonly splits?: number;
  readonly microseconds: number;
  /** Median absolute deviation, in microseconds. */
  readonly spread: number;
  /**
   * Largest error of an attention output, over its largest magnitude, against float64 on the same codes; absent where the
   * stage is judged otherwise.
   */
  readonly error?: number;
}

export interface TunedWinner extends TimedConfiguration {
  /** Bytes that a run reads at least once, over its time. */
  readonly gigabytesPerSecond: number;
  /** Its inputs came from memory, not from the last-level cache. */
  readonly cold: boolean;
  /** SHA-256 of its texts. */
  readonly source: string;
  /** Others within the noise. */
  readonly ties: readonly TimedConfiguration[];
}

/** What the search of one stage on one shape found. */
export interface StageTuning {
  readonly stage: string;
  readonly shape: string;
  /** Absent where nothing was timed. */
  readonly winner?: TunedWinner;
  readonly tried: number;
  readonly pruned: number;
  readonly failed: number;
  /** Left out by their predictions, or for lack of time. */
  readonly left: number;
  /** Between the predictions and the times; absent without predictions, or with fewer than two times. */
  readonly rankCorrelation?: number;
  readonly times: readonly (TimedConfiguration & { readonly predicted?: number })[];
  readonly untried: readonly Untried[];
  readonly history: readonly HistoryPoint[];
}

interface Task {
  readonly stage: GeometryStage;
  readonly shape: ShapeClass;
}

/** Attention is what a cache is for, and has the larger search space. */
const weightOf = ({ stage }: Task) => (stage.name === 'attend' ? 4 : 1);

/**
 * Searches the tunables of stages for shapes: each gets its part of the budget, and what it leaves goes to those after it.
 *
 * @throws KvforgeError `wrong-use` for a stage that is not tuned, and for faults of the machine what `search` throws
 */
export async function tune(request: TuneRequest, tools: TuneTools): Promise<readonly StageTuning[]> {
  const end = tools.now() + request.budgetMs;
  const context = await stageContext(tools.assets, request.scheme, request.model, request.target);
  if (context.geometry.family === 'latent') {
    throw new KvforgeError('wrong-use', {
      at: 'scheme',
      expected: 'a scheme with keys and values, as others are not tuned yet',
      received: `${request.scheme.name}, which codes latents`,
      hint: 'Generate its kernels without a lock file.',
    });
  }
  const results: StageTuning[] = [];
  const tasks = tasksOf(request, context.geometry, tools.progress);
  for (const [index, task] of tasks.entries()) {
    const space = await planSpace(context, task.stage, task.shape, tools.facts, request.tradeAccuracy);
    const { stage, shape } = task;
    // One of which nothing can be is a result, and not a good one; one that the scheme has no use for is none.
    if (space.candidates.length < 2 && !(space.candidates.length === 0 && space.pruned.length > 0)) {
      const reason = nothingToSearch(space, `${request.scheme.name} on ${request.model.name}`);
      tools.progress(`${stage.name} ${shapeText(shape)}: nothing to search: ${reason}`);
      continue;
    }
    const waiting = tasks.slice(index).reduce((sum, each) => sum + weightOf(each), 0);
    const now = tools.now();
    const deadline = now + ((end - now) * weightOf(task)) / waiting;
    const { target, candidateMs, retry, exhaustive, compileAhead } = request;
    const work = { stage: stage.name, shape };
    const limits = { deadline, candidateMs, retry, exhaustive, compileAhead };
    const found = await search({ work, target, facts: tools.facts, space }, tools, limits);
    if (found.timed.length === 0 && found.untried.some(({ kind }) => kind === 'budget')) {
      tools.progress(`${stage.name} ${shapeText(shape)}: the budget ran out before the first time; raise --budget`);
    }
    results.push(tuningOf(task, found));
  }
  return results;
}

/** Why a space of fewer than two candidates is not searched. */
function nothingToSearch({ candidates: [only], pruned: [excluded] }: PlannedSpace, of: string): string {
  if (only === undefined) return `${of} has no kernels of this stage`;
  if (excluded === undefined) return `it has one configuration, ${candidateText(only)}`;
  return `of its configurations only ${candidateText(only)} can be (${candidateText(excluded)}: ${excluded.reason})`;
}

function tasksOf(
  { stages: names, shapes }: TuneRequest,
  { family, scheme }: Geometry,
  progress: (line: string) => void,
): readonly Task[] {
  return names.flatMap((name) => {
    if (!tunedStages.includes(name)) {
      throw new KvforgeError('wrong-use', {
        at: 'stages',
        expected: `stages of ${tunedStages.join(', ')}`,
        received: JSON.stringify(name),
        hint: 'Name those to tune, with commas between them.',
      });
    }
    const stage = stagesOf[family].find((each) => each.name === name);
    if (stage === undefined) {
      progress(`${name}: nothing to search: ${scheme.name} has no such stage`);
      return [];
    }
    // Only attention runs over a whole batch; a prompt is compressed, and a sequence decoded, by itself.
    const own = name === 'attend' ? shapes : shapes.map(({ tokens }) => ({ sequences: 1, tokens }));
    const distinct = new Map(own.map((shape) => [shapeText(shape), shape]));
    return [...distinct.values()].map((shape) => ({ stage, shape }));
  });
}

function configuration({ candidate: { tunables, splits }, record, measured }: Ranked): TimedConfiguration {
  const { error } = record;
  return {
    tunables,
    ...(splits === undefined ? {} : { splits }),
    ...measured,
    ...(error === undefined ? {} : { error }),
  };
}

function tuningOf({ stage, shape }: Task, { timed, untried, history }: Searched): StageTuning {
  const winner = chooseWinner(timed);
  const ranked = timed.flatMap((one) => chooseWinner([one]) ?? []);
  const predicted = ranked.filter(({ candidate }) => candidate.predicted !== undefined);
  const correlation = rankCorrelation(
    predicted.map(({ candidate }) => candidate.predicted!),
    predicted.map(({ measured }) => measured.microseconds),
  );
  const count = (...kinds: readonly Untried['kind'][]) => untried.filter(({ kind }) => kinds.includes(kind)).length;
  return {
    stage: stage.name,
    shape: shapeText(shape),
    ...(winner
      ? {
          winner: {
            ...configuration(winner),
            gigabytesPerSecond: winner.record.bytes / winner.measured.microseconds / 1000,
            cold: winner.record.cold,
            source: winner.candidate.source,
            ties: winner.ties.map(configuration),
          },
        }
      : {}),
    tried: timed.length,
    pruned: count('pruned'),
    failed: count('wrong', 'refused', 'crashed', 'hung'),
    left: count('ordering', 'budget'),
    ...(correlation === undefined ? {} : { rankCorrelation: correlation }),
    times: ranked.map((one) => {
      const { predicted: guess } = one.candidate;
      return { ...configuration(one), ...(guess === undefined ? {} : { predicted: guess }) };
    }),
    untried,
    history,
  };
}
