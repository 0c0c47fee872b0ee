import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
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

test('an error that a scheme file throws later ends with one document', async () => {
  const file = join(temporaryFolder(), 'late.mjs');
  const late =
    "setTimeout(() => { throw new Error('late'); }, 1200); await new Promise((done) => setTimeout(done, 30));";
  writeFileSync(file, `import { shard } from 'kvforge';\n${late}\nexport default shard;\n`);
  const run = await spawned(['verify', file, '--model', 'smollm2-135m', '--device', 'emulator', '--json']);
  expect(run.code).toBe(1);
  expect(errorOf(run)).toEqual({
    code: 'internal',
    message: 'an error that nothing waited for: late',
    hint: 'If a scheme file starts timers or promises, remove them; otherwise report this with the output of kvforge doctor.',
  });
});
