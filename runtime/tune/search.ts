import type { Target } from '../../dsl/stage.js';
import type { Planned, PlannedSpace } from './candidates.js';
import { endsProcess, errorOf, failureText, type Measurer, type Outcome } from './child.js';
import type { DeviceFacts, Request, Work } from './protocol.js';
import { shapeText } from './shapeClass.js';
import { candidateText, type NamedTunables } from './space.js';
import { measuredFrom, median } from './statistics.js';
import type { TimedRecord, TimingKey, TimingRecord, TimingStore } from './store.js';

/** One stage and shape to search. */
export interface SearchTask {
  readonly work: Work;
  readonly target: Target;
  readonly facts: DeviceFacts;
  readonly space: PlannedSpace;
}

export interface SearchTools {
  readonly measurer: Measurer;
  readonly store: TimingStore;
  /** Milliseconds of a steady clock. */
  readonly now: () => number;
  readonly progress: (line: string) => void;
}

export interface SearchLimits {
  /** Milliseconds on the clock when the search must be over. */
  readonly deadline: number;
  /** One candidate that takes longer counts as hung. */
  readonly candidateMs: number;
  /** Tries again what crashed, hung or was wrong before. */
  readonly retry: boolean;
  /** Tries what predictions would leave out. */
  readonly exhaustive: boolean;
  /** Texts to compile at once. */
  readonly compileAhead: number;
}

/** A configuration that has no time, and why. */
export interface Untried {
  readonly tunables: NamedTunables;
  readonly splits?: number | undefined;
  readonly kind: 'pruned' | 'ordering' | 'budget' | 'wrong' | 'refused' | 'crashed' | 'hung';
  readonly reason: string;
}

export interface Timed {
  readonly candidate: Planned;
  readonly record: TimedRecord;
}

/** The best so far after every new time, for a plot. */
export interface HistoryPoint {
  readonly seconds: number;
  readonly candidate: string;
  readonly microseconds: number;
  readonly best: number;
}

export interface Searched {
  readonly timed: readonly Timed[];
  readonly untried: readonly Untried[];
  readonly history: readonly HistoryPoint[];
}

/** A candidate whose prediction is so many times that of the fastest one measured is not tried. */
const orderingCut = 3;
/** Candidates so close to the best take part in the last round, which decides. */
const finalistsWithin = 1.1;
const mostFinalists = 4;
/** How much longer than those before it a measurement may well take. */
const caution = 1.25;
/** Part of the budget by which it may be passed, before what still runs is given up. */
const overrun = 0.05;

/** How long measurements took, in milliseconds: of a text that was new to the process, and of one it knew. */
class Costs {
  readonly #taken = { fresh: [] as number[], known: [] as number[] };

  add(kind: 'fresh' | 'known', ms: number): void {
    this.#taken[kind].push(ms);
  }

  /** What the next one may take; 0 as long as nothing is known. */
  next(kind: 'fresh' | 'known'): number {
    const before = this.#taken[kind].length > 0 ? this.#taken[kind] : this.#taken.fresh;
    const [first, ...others] = before;
    if (first === undefined) return 0;
    // The first of a stage also sets up its inputs, and compiles the stages before it.
    return caution * (others.length > 0 ? median(others.slice(-4)) : first / 2);
  }
}

/**
 * Searches one stage on one shape: every time that is known is used, and every new one is on the disk before the next.
 *
 * @throws KvforgeError for a fault of the machine, which says nothing of a candidate: `missing-capability` without what
 * compiles, say, and what opening the device again throws
 */
export async function search(task: SearchTask, tools: SearchTools, limits: SearchLimits): Promise<Searched> {
  return new Search(task, tools, limits).run();
}

class Search {
  readonly #task: SearchTask;
  readonly #tools: SearchTools;
  readonly #limits: SearchLimits;
  readonly #started: number;
  readonly #costs = new Costs();
  readonly #records = new Map<Planned, TimingRecord>();
  readonly #untried: Untried[] = [];
  readonly #history: HistoryPoint[] = [];
  /** Texts that the process that measures has compiled, and the errors of those that were found right. */
  readonly #compiled = new Set<string>();
  readonly #right = new Map<string, number | undefined>();
  #ahead: number;

  constructor(task: SearchTask, tools: SearchTools, limits: SearchLimits) {
    this.#task = task;
    this.#tools = tools;
    this.#limits = limits;
    this.#started = tools.now();
    this.#ahead = limits.compileAhead;
  }

  async run(): Promise<Searched> {
    const { candidates, pruned } = this.#task.space;
    for (const { tunables, reason } of pruned) this.#untried.push({ tunables, kind: 'pruned', reason });
    for (const candidate of candidates) await this.#recall(candidate);
    const groups = inOrder(candidates);
    for (const [index, group] of groups.entries()) {
      await this.#compileAhead(groups.slice(index));
      let bad = this.#knownFault(group);
      for (const candidate of group) {
        if (this.#records.has(candidate)) continue;
        const skipped = bad ?? this.#skip(candidate);
        if (skipped) this.#leave(candidate, skipped.kind, skipped.reason);
        else bad = await this.#measure(candidate);
      }
    }
    await this.#finals();
    const timed = this.#timed();
    return { timed, untried: this.#untried, history: this.#history };
  }

  /** Compiles the next few texts at once: one after the other it takes most of the budget. */
  async #compileAhead(groups: readonly (readonly Planned[])[]): Promise<void> {
    const waits = (group: readonly Planned[]) =>
      this.#knownFault(group) === undefined &&
      group.some((candidate) => !this.#records.has(candidate) && this.#skip(candidate) === undefined);
    const [next] = groups;
    if (next === undefined || this.#compiled.has(next[0]!.source) || !waits(next)) return;
    const some = groups.filter((group) => !this.#compiled.has(group[0]!.source) && waits(group)).slice(0, this.#ahead);
    if (some.length < 2) return;
    const { work, target } = this.#task;
    const tunables = some.map(([first]) => first!.tunables);
    const request = { type: 'compile', target, stage: work.stage, tunables } as const;
    const outcome = await this.#ask(request, this.#limit());
    if (outcome.type !== 'compiled') {
      // Which of them is at fault shows when they are measured, one by one.
      this.#ahead = 1;
      this.#compiled.clear();
      return;
    }
    for (const [first] of some) this.#compiled.add(first!.source);
  }

  #timed(): Timed[] {
    return [...this.#records].flatMap(([candidate, record]) =>
      record.status === 'timed' ? [{ candidate, record }] : [],
    );
  }

  #key({ source, splits }: Planned): TimingKey {
    const { facts, target, work, space } = this.#task;
    const { sizes } = space;
    const { name: device, driver } = facts;
    return { source, sizes, target, device, driver, stage: work.stage, shape: shapeText(work.shape), splits };
  }

  async #recall(candidate: Planned): Promise<void> {
    const record = await this.#tools.store.read(this.#key(candidate));
    if (record === undefined) return;
    if (record.status !== 'timed') {
      if (this.#limits.retry) return;
      this.#leave(candidate, record.status, `${record.reason} (known; --retry tries again)`);
    } else {
      this.#right.set(candidate.source, record.error);
    }
    this.#records.set(candidate, record);
  }

  #leave({ tunables, splits }: Planned, kind: Untried['kind'], reason: string): void {
    this.#untried.push({ tunables, splits, kind, reason });
  }

  /** Why a candidate is not tried now. */
  #skip(candidate: Planned): { kind: Untried['kind']; reason: string } | undefined {
    const { predicted } = candidate;
    const fastest = best(this.#timed());
    const bar = fastest?.candidate.predicted;
    if (!this.#limits.exhaustive && predicted !== undefined && bar !== undefined && predicted > orderingCut * bar) {
      const reason = `predicted ${predicted.toFixed(1)} us, over ${orderingCut} times the ${bar.toFixed(1)} us of the fastest`;
      return { kind: 'ordering', reason };
    }
    const left = this.#limits.deadline - this.#tools.now();
    const needed = this.#cost(candidate) + this.#reserve();
    if (left > needed && left > 0) return undefined;
    if (left <= 0) return this.#outOfBudget('the budget was used up');
    return this.#outOfBudget(`${seconds(left)} s left, and it may take ${seconds(needed)} s`);
  }

  /** Without a single time there is no result, and only more time makes one. */
  #outOfBudget(reason: string): { kind: 'budget'; reason: string } {
    return { kind: 'budget', reason: this.#timed().length === 0 ? `${reason}; raise --budget` : reason };
  }

  #cost({ source }: Planned): number {
    return this.#costs.next(this.#compiled.has(source) ? 'known' : 'fresh');
  }

  /** For the last round. */
  #reserve(): number {
    return this.#timed().length === 0 ? 0 : 2 * this.#costs.next('known');
  }

  #limit(): number {
    const { deadline, candidateMs } = this.#limits;
    const left = deadline - this.#tools.now();
    const grace = (deadline - this.#started) * overrun;
    return Math.max(1, Math.min(candidateMs, left + grace));
  }

  /** An answer that is about what was asked: without NVRTC, say, every candidate would be refused, and stay so. */
  async #ask(request: Exclude<Request, { type: 'open' }>, limitMs: number): Promise<Outcome> {
    const outcome = await this.#tools.measurer.ask(request, limitMs);
    const missing = outcome.type === 'failed' && outcome.failure.code === 'missing-capability';
    if (missing) throw errorOf(outcome.failure);
    return outcome;
  }

  /** @returns why the other candidates of the same text need not be tried */
  async #measure(candidate: Planned): Promise<{ kind: Untried['kind']; reason: string } | undefined> {
    const { work, target } = this.#task;
    const { tunables, splits, source } = candidate;
    const kind = this.#compiled.has(source) ? 'known' : 'fresh';
    const limitMs = this.#limit();
    const started = this.#tools.now();
    const outcome = await this.#ask(
      { type: 'measure', target, work, variant: { tunables, splits }, checked: this.#right.has(source) },
      limitMs,
    );
    const ms = this.#tools.now() - started;
    this.#costs.add(kind, ms);
    if (outcome.type === 'measured') {
      this.#compiled.add(source);
      const { samples, bytes, cold } = outcome;
      const error = outcome.error ?? this.#right.get(source);
      this.#right.set(source, error);
      await this.#keep(candidate, { status: 'timed', samples: [...samples], error, bytes, cold, seconds: ms / 1000 });
      this.#note(candidate, samples);
      return undefined;
    }
    const { status, reason } = this.#fault(outcome, limitMs);
    if (status === 'budget') {
      this.#leave(candidate, 'budget', this.#outOfBudget(reason).reason);
      return this.#outOfBudget('the budget was used up');
    }
    if (endsProcess(outcome)) {
      this.#compiled.clear();
      // Of a device that does not open any more nobody knows whether the candidate was at fault.
      await this.#tools.measurer.facts();
    }
    this.#tools.progress(`${work.stage} ${shapeText(work.shape)}: ${candidateText(candidate)}: ${status}: ${reason}`);
    this.#leave(candidate, status, reason);
    const record: TimingRecord = { status, reason, seconds: ms / 1000 };
    // What a shape has no room for, it may have with less on the device.
    if (outcome.type === 'failed' && outcome.failure.code === 'does-not-fit') {
      this.#records.set(candidate, record);
      return undefined;
    }
    await this.#keep(candidate, record);
    return { kind: status, reason };
  }

  /**
   * What is wrong with the text of a group, by what an earlier run found: with other splits it would be as wrong, and hang
   * as long.
   */
  #knownFault(group: readonly Planned[]): { kind: Untried['kind']; reason: string } | undefined {
    for (const candidate of group) {
      const record = this.#records.get(candidate);
      if (record === undefined || record.status === 'timed') continue;
      return { kind: record.status, reason: `as ${candidateText(candidate)}: ${record.reason}` };
    }
    return undefined;
  }

  #fault(
    outcome: Outcome,
    limitMs: number,
  ): { status: 'wrong' | 'refused' | 'crashed' | 'hung' | 'budget'; reason: string } {
    switch (outcome.type) {
      case 'wrong':
      case 'refused':
      case 'crashed':
        return { status: outcome.type, reason: outcome.reason };
      case 'hung':
        // It was given less time than a candidate has.
        return limitMs < this.#limits.candidateMs
          ? { status: 'budget', reason: `it was given up after ${seconds(limitMs)} s` }
          : { status: 'hung', reason: `no answer in ${limitMs / 1000} s; if the device is only slow, raise --limit` };
      case 'failed': {
        const { failure } = outcome;
        if (failure.code === 'internal') throw errorOf(failure);
        const status = failure.code === 'kernel-fault' ? 'wrong' : 'refused';
        return { status, reason: failureText(failure) };
      }
      default:
        throw new Error(`a measurement was answered with ${outcome.type}`);
    }
  }

  async #keep(candidate: Planned, record: TimingRecord): Promise<void> {
    await this.#tools.store.write(this.#key(candidate), record);
    this.#records.set(candidate, record);
  }

  #note(candidate: Planned, samples: readonly number[]): void {
    const { work } = this.#task;
    const { microseconds } = measuredFrom(samples);
    const fastest = measuredFrom(best(this.#timed())!.record.samples).microseconds;
    this.#history.push({
      seconds: (this.#tools.now() - this.#started) / 1000,
      candidate: candidateText(candidate),
      microseconds,
      best: fastest,
    });
    const line = `${candidateText(candidate)}: ${microseconds.toFixed(1)} us, best ${fastest.toFixed(1)} us`;
    this.#tools.progress(`${work.stage} ${shapeText(work.shape)}: ${line}`);
  }

  /** Times the best again, in turns; nothing to do where all of them were timed so before. */
  async #finals(): Promise<void> {
    const ranked = this.#timed().sort((a, b) => timeOf(a) - timeOf(b));
    const [fastest] = ranked;
    if (fastest === undefined) return;
    const finalists = ranked.filter((one) => timeOf(one) <= finalistsWithin * timeOf(fastest)).slice(0, mostFinalists);
    if (finalists.length < 2 || finalists.every(({ record }) => record.finals !== undefined)) return;
    const needed = finalists.reduce((sum, { candidate }) => sum + this.#cost(candidate), 0);
    if (this.#tools.now() + needed > this.#limits.deadline) return;
    const { work, target } = this.#task;
    const variants = finalists.map(({ candidate: { tunables, splits } }) => ({ tunables, splits }));
    const outcome = await this.#ask({ type: 'repeat', target, work, variants }, this.#limit());
    if (outcome.type !== 'repeated') {
      this.#tools.progress(`${work.stage} ${shapeText(work.shape)}: the best were not timed again: ${outcome.type}`);
      return;
    }
    for (const [i, { candidate, record }] of finalists.entries()) {
      await this.#keep(candidate, { ...record, finals: [...outcome.samples[i]!] });
    }
  }
}

const seconds = (ms: number) => (ms / 1000).toFixed(1);
const timeOf = ({ record }: Timed) => measuredFrom(record.samples).microseconds;

function best(timed: readonly Timed[]): Timed | undefined {
  return timed.reduce<Timed | undefined>((a, b) => (a === undefined || timeOf(b) < timeOf(a) ? b : a), undefined);
}

/**
 * Candidates of one text together, as compiling it is what costs: the defaults first, so that there always is a result,
 * then by their best prediction.
 */
function inOrder(candidates: readonly Planned[]): readonly (readonly Planned[])[] {
  const groups = new Map<string, Planned[]>();
  for (const candidate of candidates)
    groups.set(candidate.source, [...(groups.get(candidate.source) ?? []), candidate]);
  const predicted = ({ predicted = 0 }: Planned) => predicted;
  const [first, ...others] = [...groups.values()];
  if (first === undefined) return [];
  const least = (group: readonly Planned[]) => Math.min(...group.map(predicted));
  const sorted = (group: readonly Planned[]) => [...group].sort((a, b) => predicted(a) - predicted(b));
  // The first of all is the default in everything.
  return [[...first.slice(0, 1), ...sorted(first.slice(1))], ...others.sort((a, b) => least(a) - least(b)).map(sorted)];
}
