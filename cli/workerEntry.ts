import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** A module to run in a process of its own, and what Node needs to run it. */
export interface WorkerEntry {
  readonly entry: string;
  readonly execArgv: readonly string[];
}

/**
 * The tuner's worker: beside this module, in TypeScript where that runs from its sources, or bundled as the program is.
 *
 * @throws Error where a bundle was made without it
 */
export function workerEntry(): WorkerEntry {
  for (const ending of ['ts', 'js', 'mjs']) {
    const entry = fileURLToPath(new URL(`./tuneWorker.${ending}`, import.meta.url));
    if (!existsSync(entry)) continue;
    // A loader that the program itself runs with, such as tsx, is passed on.
    const loader = ending === 'ts' && !process.execArgv.some((arg) => arg.includes('tsx')) ? ['--import', 'tsx'] : [];
    return { entry, execArgv: [...process.execArgv.filter((arg) => !arg.startsWith('--inspect')), ...loader] };
  }
  throw new Error('tuneWorker is not beside the program; bundle cli/tuneWorker.ts too');
}
