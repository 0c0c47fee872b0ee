import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import type { Context } from '../../cli/output.js';
import { runCli } from '../../cli/program.js';
import { packagePath } from '../../codegen/packageRoot.js';

export interface Run {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

/** Runs the command line in this process. */
export async function cli(...args: readonly string[]): Promise<Run> {
  let [out, err] = ['', ''];
  const streams = {
    out: (text: string) => {
      out += text;
    },
    err: (text: string) => {
      err += text;
    },
    outIsTerminal: false,
  };
  return { code: await runCli(args, streams), out, err };
}

/** Runs the command line as a process of its own, from the sources. */
export function spawned(
  args: readonly string[],
  onErr: (text: string, pid: number) => void = () => {},
  environment: Readonly<Record<string, string>> = {},
): Promise<Run> {
  const child = spawn(process.execPath, ['--import', 'tsx', packagePath('cli', 'main.ts'), ...args], {
    cwd: packagePath(),
    env: { ...process.env, ...environment },
  });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data) => {
    out += data;
  });
  child.stderr.on('data', (data) => {
    err += data;
    onErr(err, child.pid!);
  });
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, out, err })));
}

/** The one document that --json prints. */
export function documentOf(run: Run): Record<string, unknown> {
  return JSON.parse(run.out) as Record<string, unknown>;
}

export function errorOf(run: Run): { code: string; message: string; hint: string } {
  return (documentOf(run) as { error: { code: string; message: string; hint: string } }).error;
}

/** A folder outside of the package that ends with the test. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-cli-test-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** A context that keeps what it is told. */
export function quietContext(lines: string[] = []): Context {
  return { colors: false, progress: (line) => void lines.push(line), onInterrupt: () => ({ release: () => {} }) };
}
