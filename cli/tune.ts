import { availableParallelism } from 'node:os';
import { diskAssets } from '../codegen/assetsDisk.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Target } from '../dsl/stage.js';
import { cacheFolder } from '../runtime/cacheFolder.js';
import { ChildMeasurer, type Measurer } from '../runtime/tune/child.js';
import { recallFacts, rememberFacts } from '../runtime/tune/facts.js';
import { addToLock, readLock } from '../runtime/tune/lock/file.js';
import { type LockEntry, modelHash, targetName } from '../runtime/tune/lock/format.js';
import type { DeviceFacts } from '../runtime/tune/protocol.js';
import { parseShape } from '../runtime/tune/shapeClass.js';
import { candidateText } from '../runtime/tune/space.js';
import { TimingStore } from '../runtime/tune/store.js';
import { type StageTuning, tune, tunedStages } from '../runtime/tune/tune.js';
import { deviceNames } from './devices.js';
import { type Context, exitCodes, type Outcome } from './output.js';
import { requirePlace } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { checkShapes } from './shapes.js';
import { table } from './table.js';
import { optionsOf, type SchedulingOptions, targetOf, targetOn } from './target.js';
import { commaList, oneOfNames, wholeNumber } from './values.js';
import { workerEntry } from './workerEntry.js';

export interface TuneOptions extends Omit<SchedulingOptions, 'set'> {
  readonly model: string;
  readonly device: string;
  readonly stages?: string;
  readonly shapes: string;
  readonly budget: string;
  readonly limit: string;
  readonly lockfile: string;
  readonly explain?: true;
  readonly retry?: true;
  readonly exhaustive?: true;
  readonly tradeAccuracy?: true;
}

export interface TuneTools {
  readonly measurer: (open: { scheme: string; model: string; device: string }) => Measurer;
  /** Where times are kept. */
  readonly folder: () => Promise<string>;
}

const tools: TuneTools = {
  measurer: (open) => new ChildMeasurer({ ...workerEntry(), open: { type: 'open', ...open } }),
  folder: () => cacheFolder(['tuning']),
};

export async function tuneCommand(
  context: Context,
  schemeName: string,
  options: TuneOptions,
  { measurer: start, folder: keptIn }: TuneTools = tools,
): Promise<Outcome> {
  const device = oneOfNames('--device', options.device, deviceNames);
  const seconds = wholeNumber('--budget', options.budget, { from: 1, to: 86_400 });
  const limit = wholeNumber('--limit', options.limit, { from: 1, to: 3600 });
  const stages =
    options.stages === undefined
      ? tunedStages
      : commaList(options.stages).map((name) => oneOfNames('--stages', name, tunedStages));
  const language = device === 'webgpu' ? 'wgsl' : 'cuda';
  const scheduling = { ...options, set: [] };
  // Options of the other language, and the like: known without the device.
  targetOf(language, scheduling);
  const shapes = commaList(options.shapes).map((text) => parseShape(text, '--shapes'));
  const started = performance.now();
  const model = await resolveModel(options.model);
  const scheme = await resolveScheme(schemeName, model);
  checkShapes(shapes, model, '--shapes');
  // A lock file that cannot be read or written is better known before an hour of measurements than after it.
  await requirePlace(options.lockfile, '--lockfile');
  await readLock(options.lockfile);
  const folder = await keptIn();
  const measurer = counting(start({ scheme: schemeName, model: options.model, device }));
  const { release } = context.onInterrupt(() => measurer.close());
  try {
    const recalled = await recallFacts(folder, device);
    const facts = recalled ?? (await askFacts(measurer, folder, device));
    const sure = recalled ? sameDevice(measurer, recalled, () => askFacts(measurer, folder, device)) : measurer;
    const { architecture, features, sharedBytes } = facts;
    const described = { identity: { architecture }, features: new Set(features), limits: { sharedBytes } };
    const target = targetOn({ target: language, ...described }, scheduling);
    context.progress(
      `tuning ${scheme.name} on ${model.name} for ${targetName(target)}: ${facts.name}, driver ${facts.driver}`,
    );
    const request = {
      ...{ scheme, model, target, stages, shapes },
      budgetMs: seconds * 1000 - (performance.now() - started),
      candidateMs: limit * 1000,
      retry: options.retry === true,
      exhaustive: options.exhaustive === true,
      tradeAccuracy: options.tradeAccuracy === true,
      // The others have the measurements to themselves.
      compileAhead: Math.max(1, Math.floor(availableParallelism() / 2)),
    };
    const store = new TimingStore(folder);
    const now = () => performance.now();
    const found = await tune(request, {
      assets: diskAssets,
      facts,
      measurer: sure,
      store,
      now,
      progress: context.progress,
    });
    const hash = await modelHash(model);
    const entries = entriesOf(found, { scheme: scheme.name, model: model.name, modelHash: hash, target, facts });
    if (entries.length > 0) await addToLock(options.lockfile, entries);
    const about = {
      scheme: scheme.name,
      model: model.name,
      device: facts.name,
      driver: facts.driver,
      target: targetName(target),
      clock: facts.clock,
      lockfile: entries.length > 0 ? options.lockfile : null,
      seconds: Math.round(performance.now() - started) / 1000,
    };
    const failed = found.length > entries.length;
    return {
      code: failed ? exitCodes.failed : exitCodes.done,
      json: { ...about, shapes: found },
      text: textOf(
        found,
        { ...about, options: optionsOf(target), measured: measurer.asked() },
        options.explain === true,
        context,
      ),
    };
  } finally {
    release();
    await measurer.close();
  }
}

/** Counts what is measured, not only looked up. */
function counting(measurer: Measurer): Measurer & { asked(): number } {
  let count = 0;
  return {
    facts: () => measurer.facts(),
    ask: (request, limitMs) => {
      if (request.type !== 'compile') count++;
      return measurer.ask(request, limitMs);
    },
    close: () => measurer.close(),
    asked: () => count,
  };
}

async function askFacts(measurer: Measurer, folder: string, device: string): Promise<DeviceFacts> {
  const facts = await measurer.facts();
  await rememberFacts(folder, device, facts);
  return facts;
}

/** Measures only on the device that the times at hand are of: what is recalled may be of a driver that was replaced since. */
function sameDevice(measurer: Measurer, recalled: DeviceFacts, ask: () => Promise<DeviceFacts>): Measurer {
  let checked: Promise<void> | undefined;
  const check = async () => {
    const { name, driver } = await ask();
    if (name === recalled.name && driver === recalled.driver) return;
    throw new KvforgeError('wrong-use', {
      at: 'device',
      expected: `${recalled.name}, driver ${recalled.driver}, as it was last`,
      received: `${name}, driver ${driver}`,
      hint: 'Run the command again: the device is known now.',
    });
  };
  return {
    facts: () => measurer.facts(),
    ask: async (request, limitMs) => {
      checked ??= check();
      await checked;
      return measurer.ask(request, limitMs);
    },
    close: () => measurer.close(),
  };
}

interface Origin extends Pick<LockEntry, 'scheme' | 'model' | 'modelHash'> {
  readonly target: Target;
  readonly facts: DeviceFacts;
}

function entriesOf(found: readonly StageTuning[], { target, facts, ...names }: Origin): readonly LockEntry[] {
  const three = (value: number) => Math.round(value * 1000) / 1000;
  return found.flatMap(({ stage, shape, winner }) => {
    if (winner === undefined) return [];
    const { tunables, splits, microseconds, spread, error, source, ties, cold } = winner;
    return {
      ...names,
      target: targetName(target),
      device: facts.name,
      driver: facts.driver,
      ...{ stage, shape, tunables, splits, source },
      microseconds: three(microseconds),
      spread: three(spread),
      ...(error === undefined ? {} : { error: Number(error.toPrecision(2)) }),
      ...(cold ? {} : { warm: true as const }),
      ties: ties.map((tie) => ({ tunables: tie.tunables, splits: tie.splits, microseconds: three(tie.microseconds) })),
    };
  });
}

const columns = [
  { title: 'stage' },
  { title: 'shape' },
  { title: 'winner' },
  { title: 'us', align: 'right' },
  { title: 'spread', align: 'right' },
  { title: 'GB/s', align: 'right' },
  { title: 'error', align: 'right' },
  { title: 'ties', align: 'right' },
  { title: 'tried', align: 'right' },
  { title: 'pruned', align: 'right' },
  { title: 'failed', align: 'right' },
  { title: 'left', align: 'right' },
  { title: 'rank', align: 'right' },
] as const;

function textOf(
  found: readonly StageTuning[],
  {
    lockfile,
    seconds,
    clock,
    options,
    measured,
  }: { lockfile: string | null; seconds: number; clock: string; options: string; measured: number },
  explain: boolean,
  context: Context,
): string {
  const rows = found.map(({ stage, shape, winner, rankCorrelation, ...counts }) => [
    stage,
    shape,
    winner ? candidateText(winner) : 'none',
    winner ? winner.microseconds.toFixed(1) : '',
    winner ? winner.spread.toFixed(2) : '',
    winner ? `${winner.gigabytesPerSecond.toFixed(1)}${winner.cold ? '' : ' warm'}` : '',
    winner?.error?.toExponential(1) ?? '',
    winner ? String(winner.ties.length) : '',
    ...[counts.tried, counts.pruned, counts.failed, counts.left].map(String),
    rankCorrelation === undefined ? '' : rankCorrelation.toFixed(2),
  ]);
  const list = rows.length > 0 ? table(columns, rows, context.colors) : 'nothing to search\n';
  const failed = found.some(({ failed, winner }) => failed > 0 && winner === undefined);
  const hint = failed ? '; --explain says why there are none, --retry tries again what failed' : '';
  const closing = `${clock} clock, ${seconds.toFixed(1)} s; ${lockfile === null ? 'no winners to write' : `winners are in ${lockfile}`}${hint}\n`;
  const known = measured === 0 && found.some(({ tried, failed }) => tried + failed > 0);
  const kept = known ? 'nothing was measured now: every result was kept from an earlier run\n' : '';
  const use = lockfile === null ? '' : `generate and verify take them with ${options}\n`;
  return `${list}\n${closing}${kept}${use}${explain ? explanation(found, context) : ''}`;
}

function explanation(found: readonly StageTuning[], context: Context): string {
  const rows = found.flatMap(({ stage, shape, untried }) =>
    untried.map((one) => [stage, shape, candidateText(one), one.kind, one.reason.split('\n')[0]!]),
  );
  if (rows.length === 0) return '\nEvery configuration was tried.\n';
  const titles = ['stage', 'shape', 'configuration', 'why', 'reason'].map((title) => ({ title }));
  return `\nNot tried:\n${table(titles, rows, context.colors)}`;
}
