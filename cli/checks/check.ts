import type { DeviceName } from '../devices.js';

/** One line of `kvforge doctor`. */
export interface Check {
  readonly name: string;
  readonly ok: boolean;
  readonly detail: string;
  /** The next thing to do; empty where all is well. */
  readonly fix: string;
  /** What `--device` calls the device that was found, where kernels run on it. */
  readonly runsOn?: DeviceName;
}

export function found(name: string, detail: string): Check {
  return { name, ok: true, detail, fix: '' };
}

export function missing(name: string, detail: string, fix: string): Check {
  return { name, ok: false, detail, fix };
}

/** Runs a check; one that throws has failed, with the hint of the error as its fix. */
export async function guarded(name: string, check: () => Promise<Check>): Promise<Check> {
  try {
    return await check();
  } catch (error) {
    const { parts } = error as { parts?: { received: string; hint: string } };
    if (parts !== undefined) return missing(name, parts.received, parts.hint);
    return missing(name, error instanceof Error ? error.message : String(error), 'Report it with this output.');
  }
}
