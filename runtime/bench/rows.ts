import { type ShapeClass, shapeText } from '../tune/shapeClass.js';
import type { Checked } from './contender.js';
import type { Timing } from './samples.js';
import type { BenchRow } from './schema.js';

/** What was found out about one contender at one shape. */
export interface Measured {
  readonly scheme: string;
  readonly stage: BenchRow['stage'];
  readonly shape: ShapeClass;
  readonly splits?: number;
  readonly sweep?: BenchRow['sweep'];
  readonly tunables?: BenchRow['tunables'];
  readonly copies: number;
  /** What a run read came from memory; else some of it may have come from a cache. */
  readonly cold: boolean;
  readonly timing: Timing;
  readonly bytes: number;
  readonly bytesRead: number;
  readonly operations?: number;
  readonly checked: Checked;
  /** Why its time is not to be compared with. */
  readonly noBaseline?: string;
}

export interface Ceilings {
  readonly bytesPerSecond: number;
  /** A second, where it is known. */
  readonly operations?: number | undefined;
}

export const baselines = ['cudnn', 'fp16'] as const;
export type Baseline = (typeof baselines)[number];

/**
 * Rows of one shape and stage: rates, shares of the ceilings, and ratios to what ran beside. Nothing that gave a wrong
 * result has a ratio, nor is a ratio to it given, nor one between inputs from memory and inputs from a cache.
 */
export function rowsOf(measured: readonly Measured[], ceilings: Ceilings, baseline: Baseline): readonly BenchRow[] {
  const baselineOf = (name: Baseline): Measured | undefined => {
    const found = measured.find(({ scheme }) => scheme === name);
    return found?.noBaseline === undefined && found && isCorrect(found.checked) ? found : undefined;
  };
  const found = { cudnn: baselineOf('cudnn'), fp16: baselineOf('fp16') };
  return measured.map((each): BenchRow => {
    const { timing, bytesRead, operations, checked } = each;
    const correct = isCorrect(checked);
    const comparable = (name: Baseline) => (found[name]?.cold === each.cold ? found[name] : undefined);
    const ratioTo = (name: Baseline) => {
      const other = comparable(name);
      return other === undefined || !correct ? null : other.timing.us / timing.us;
    };
    const apart = baselines.filter((name) => found[name] !== undefined && comparable(name) === undefined);
    const byteShare = bytesRead / (timing.us * 1e-6) / ceilings.bytesPerSecond;
    const operationShare =
      operations === undefined || ceilings.operations === undefined
        ? null
        : operations / (timing.us * 1e-6) / ceilings.operations;
    return {
      scheme: each.scheme,
      stage: each.stage,
      shape: shapeText(each.shape),
      splits: each.splits ?? null,
      sweep: each.sweep ?? [],
      tunables: each.tunables ?? {},
      copies: each.copies,
      cold: each.cold,
      ...timing,
      bytes: each.bytes,
      bytesRead,
      gbps: bytesRead / timing.us / 1e3,
      operations: operations ?? null,
      intensity: operations === undefined ? null : operations / bytesRead,
      byteShare,
      operationShare,
      roofline: Math.max(byteShare, operationShare ?? 0),
      maxError: Number.isFinite(checked.maxError) ? checked.maxError : null,
      errorBar: checked.bar,
      checked: checked.what,
      correct,
      baselineUs: comparable(baseline)?.timing.us ?? null,
      ratio: ratioTo(baseline),
      ratioFp16: ratioTo('fp16'),
      ratioCudnn: ratioTo('cudnn'),
      notes: [
        ...(each.noBaseline === undefined ? [] : [each.noBaseline]),
        ...apart.map((name) => apartText(name, each.cold)),
        ...(correct ? [] : [wrongText(checked)]),
      ],
    };
  });
}

function isCorrect({ maxError, bar }: Checked): boolean {
  return maxError <= bar;
}

function apartText(name: Baseline, cold: boolean): string {
  const [own, other] = cold ? ['memory', 'a cache'] : ['a cache', 'memory'];
  return `no ratio to ${name}: these inputs came from ${own}, those from ${other}`;
}

function wrongText({ maxError, bar }: Checked): string {
  const error = Number.isFinite(maxError) ? maxError.toExponential(1) : 'no number';
  return `wrong: error ${error}, at most ${bar.toExponential(0)} is right`;
}
