/** One comparison of a case: it passed if `error` is at most `bar`. */
export interface Check {
  /** What was compared, and where it was worst. */
  readonly what: string;
  /** In the unit of the bar; infinite for what is not a number. */
  readonly error: number;
  readonly bar: number;
}

/** Collects what a case compared, so that a failure is data and later checks still run. */
export class Judge {
  readonly failures: Check[] = [];
  /** Reasons of checks that were not made. */
  readonly skipped: string[] = [];
  /** Largest error of an attention output, over its largest magnitude. */
  maxError = 0;

  check(what: string, error: number, bar: number): void {
    if (!(error <= bar))
      this.failures.push({ what, error: Number.isNaN(error) ? Number.POSITIVE_INFINITY : error, bar });
  }

  /** A check of an attention output. */
  output(what: string, error: number, bar: number): void {
    this.maxError = Math.max(this.maxError, error);
    this.check(what, error, bar);
  }

  skip(reason: string): void {
    this.skipped.push(reason);
  }
}

/** The largest error of many, with its place. */
export class Worst {
  error = 0;
  at = '';

  /** @param at called when this is the worst so far */
  add(error: number, at: () => string): void {
    if (error <= this.error) return;
    this.error = Number.isNaN(error) ? Number.POSITIVE_INFINITY : error;
    this.at = at();
  }
}

/** Distance between neighbouring float16 numbers at `x`. */
export function halfStep(x: number): number {
  const size = Math.min(Math.abs(x), 65504);
  return 2 ** (size < 2 ** -14 ? -24 : Math.floor(Math.log2(size)) - 10);
}

/** How far rounding to float16 may move `x`: half a step; a whole one for subnormals, whose rounding WebGPU leaves open. */
export function halfRounding(x: number): number {
  return halfStep(x) * (Math.abs(x) < 2 ** -14 ? 1.001 : 0.501);
}

export function clampToHalf(x: number): number {
  return Math.min(Math.max(x, -65504), 65504);
}
