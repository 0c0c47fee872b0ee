import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { defaultTargets } from '../../../codegen/generate.js';
import type { Planned, PlannedSpace } from '../../../runtime/tune/candidates.js';
import type { Measurer, Outcome } from '../../../runtime/tune/child.js';
import type { DeviceFacts, Request, Variant } from '../../../runtime/tune/protocol.js';
import { type Searched, type SearchLimits, search } from '../../../runtime/tune/search.js';
import { TimingStore } from '../../../runtime/tune/store.js';

export const facts: DeviceFacts = {
  name: 'Scripted GPU',
  driver: '1.0',
  multiprocessors: 100,
  sharedBytes: 100_000,
  features: [],
  clock: 'device',
};

export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-tune-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Candidates with `warps` 0, 1, 2, ... of texts of their own, in two splits each where asked for. */
export function spaceOf(
  predictions: readonly (number | undefined)[],
  splits?: readonly number[],
  sizes = 'those of a model',
): PlannedSpace {
  const candidates: Planned[] = [];
  for (const [warps, predicted] of predictions.entries()) {
    for (const each of splits ?? [undefined]) {
      candidates.push({
        index: candidates.length,
        tunables: { warps },
        ...(each === undefined ? {} : { splits: each }),
        source: String(warps).repeat(64),
        predicted,
      });
    }
  }
  return { sizes, candidates, pruned: [{ tunables: { warps: 99 }, reason: '99 warps for a block of 32' }] };
}

/** What a measurement gives, and how many milliseconds of the scripted clock it takes. */
export type Script = (variant: Variant) => { readonly outcome: Outcome; readonly ms: number };

export const measured = (...samples: readonly number[]): Outcome => ({
  type: 'measured',
  samples,
  error: 1e-4,
  bytes: 1e6,
  cold: true,
});

/** A measurer without a device, on a clock of its own. */
export class Scripted implements Measurer {
  readonly asked: Exclude<Request, { type: 'open' }>[] = [];
  readonly #script: Script;
  clock = 0;

  constructor(script: Script) {
    this.#script = script;
  }

  readonly now = () => this.clock;

  facts(): Promise<DeviceFacts> {
    return Promise.resolve(facts);
  }

  async ask(request: Exclude<Request, { type: 'open' }>, limitMs: number): Promise<Outcome> {
    this.asked.push(request);
    if (request.type === 'compile') return { type: 'compiled' };
    const variants = request.type === 'repeat' ? request.variants : [request.variant];
    const results = variants.map((variant) => this.#script(variant));
    const ms = results.reduce((sum, one) => sum + one.ms, 0);
    if (ms > limitMs) {
      this.clock += limitMs;
      return { type: 'hung', reason: `no answer in ${limitMs} ms` };
    }
    this.clock += ms;
    if (request.type === 'measure') return results[0]!.outcome;
    const samples = results.map(({ outcome }) => (outcome.type === 'measured' ? outcome.samples : []));
    return { type: 'repeated', samples };
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** Of every candidate that was measured, its warps and splits, in order. */
  get measured(): readonly string[] {
    return this.asked.flatMap((request) => {
      if (request.type !== 'measure') return [];
      const { tunables, splits } = request.variant;
      return splits === undefined ? `${tunables.warps}` : `${tunables.warps}/${splits}`;
    });
  }
}

export interface SearchSettings extends Partial<SearchLimits> {
  readonly folder?: string;
  readonly lines?: string[];
}

/** Searches a space of a stage that is none. */
export function searched(
  space: PlannedSpace,
  measurer: Scripted,
  { folder = temporaryFolder(), lines = [], ...limits }: SearchSettings = {},
): Promise<Searched> {
  const work = { stage: 'attend', shape: { sequences: 1, tokens: 8192 } };
  const store = new TimingStore(folder);
  return search(
    { work, target: defaultTargets.cuda, facts, space },
    { measurer, store, now: measurer.now, progress: (line) => void lines.push(line) },
    { deadline: 1e9, candidateMs: 10_000, retry: false, exhaustive: false, compileAhead: 1, ...limits },
  );
}
