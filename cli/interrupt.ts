import { readdirSync, readFileSync } from 'node:fs';

/** The processes that one started, read from /proc; none where there is no such folder. */
function childrenOf(pid: number): number[] {
  const tasks = `/proc/${pid}/task`;
  try {
    return readdirSync(tasks).flatMap((task) =>
      readFileSync(`${tasks}/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
    );
  } catch {
    return [];
  }
}

/** Ends all that this process has started: compilers, emulators, and what they started. */
export function endChildProcesses(pid = process.pid): void {
  for (const child of childrenOf(pid)) {
    endChildProcesses(child);
    try {
      process.kill(child, 'SIGKILL');
    } catch {
      // It has ended by itself.
    }
  }
}

/** What is open now and must be closed when the user interrupts. */
export class OpenThings {
  readonly #closers = new Set<() => Promise<void>>();

  add(close: () => Promise<void>): { release: () => void } {
    this.#closers.add(close);
    return { release: () => this.#closers.delete(close) };
  }

  /** Closes everything; gives up on what does not close within `limitMs`. */
  async closeAll(limitMs: number): Promise<void> {
    const closing = Promise.allSettled([...this.#closers].map((close) => close()));
    let timer: NodeJS.Timeout | undefined;
    const limit = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, limitMs);
    });
    await Promise.race([closing, limit]);
    clearTimeout(timer);
  }
}
