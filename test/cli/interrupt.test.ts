import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { errorOf, spawned, temporaryFolder } from './support.js';

/** Processes whose command line holds the text. */
function processesWith(text: string): string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(text);
    } catch {
      return false;
    }
  });
}

function parentOf(pid: string): number {
  try {
    return Number(/^PPid:\s*(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
  } catch {
    return 0;
  }
}

test.runIf(process.platform === 'linux')(
  'an interruption ends with 130, one document, and no process left',
  async () => {
    const out = join(temporaryFolder(), 'report.html');
    let emulators: string[] = [];
    const run = await spawned(
      ['demo', '--backends', 'emulator', '--layers', '2', '--out', out, '--json'],
      (err, pid) => {
        if (!err.includes('kernels compiled') || emulators.length > 0) return;
        emulators = processesWith('emulator').filter((each) => parentOf(each) === pid);
        process.kill(pid, 'SIGINT');
      },
    );
    expect(run.code).toBe(130);
    expect(errorOf(run)).toEqual({ code: 'interrupted', message: 'interrupted', hint: '' });
    expect(emulators).not.toEqual([]);
    for (const pid of emulators) expect(() => process.kill(Number(pid), 0)).toThrow();
  },
);
