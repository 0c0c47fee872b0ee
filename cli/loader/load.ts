import { fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, realpath, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type ErrorCode, type ErrorParts, KvforgeError } from '../../dsl/errors.js';
import { defineScheme, type Scheme } from '../../dsl/scheme.js';
import { inFile } from '../inFile.js';
import type { ProbeReport } from './probe.js';
import { besides, importUserFile, type PlainError } from './userModule.js';

/**
 * Loads a scheme from a user's file: its default export, its only scheme, or the one named after `#`.
 *
 * The file is loaded in a child process first: one that never ends is killed there.
 *
 * @throws KvforgeError `invalid-scheme` with the file, and the line where there is one
 * @example
 * await loadScheme('./my-schemes.ts#small');
 */
export async function loadScheme(name: string, limitMs = 20_000): Promise<Scheme> {
  const { path, exportName } = existsSync(name) ? { path: name, exportName: undefined } : splitName(name);
  const refuse = (expected: string, received: string, hint: string): never => {
    throw new KvforgeError('invalid-scheme', { at: path, expected, received, hint });
  };
  if (!existsSync(path)) refuse('a scheme file', 'no such file', 'Check the path.');
  if (!(await stat(path)).isFile()) refuse('a scheme file', 'something else', 'Check the path.');
  // Stacks name the real path, so the file is loaded by it.
  const file = await realpath(resolve(path));
  const url = pathToFileURL(file).href;
  const cache = await mkdtemp(join(tmpdir(), 'kvforge-scheme-'));
  try {
    const report = await probe(url, cache, limitMs);
    if (report === 'too slow') {
      refuse(
        `a file that loads within ${limitMs / 1000} s`,
        'one that was still running',
        'Look for a loop, or a promise that never settles.',
      );
    } else if (typeof report === 'number') {
      refuse('a file that loads', `one that ended the process with code ${report}`, 'Remove the call that exits.');
    } else if (!report.loaded) {
      throw faultOf(report.error, path, file);
    }
    const exports = await importUserFile(url, cache);
    const found = pick(exports, exportName, refuse);
    return inFile(path, () => defineScheme(found));
  } finally {
    await rm(cache, { recursive: true, force: true });
  }
}

function splitName(name: string): { path: string; exportName: string | undefined } {
  const hash = name.lastIndexOf('#');
  return hash < 0
    ? { path: name, exportName: undefined }
    : { path: name.slice(0, hash), exportName: name.slice(hash + 1) };
}

/** What the child reports, the code it exits with when it does not, or that it had to be killed. */
function probe(url: string, cache: string, limitMs: number): Promise<ProbeReport | number | 'too slow'> {
  return new Promise((settle, reject) => {
    const child = fork(fileURLToPath(besides('./probe')), [url, cache], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    let result: ProbeReport | 'too slow' | undefined;
    const timer = setTimeout(() => {
      result = 'too slow';
      child.kill('SIGKILL');
    }, limitMs);
    child.on('message', (message) => {
      result ??= message as ProbeReport;
    });
    child.on('error', reject);
    child.on('close', (code) => {
      clearTimeout(timer);
      settle(result ?? code ?? 1);
    });
  });
}

function faultOf({ name, message, stack, code, parts }: PlainError, path: string, file: string): KvforgeError {
  const position = stack.split('\n').find((line) => line.includes(file) && /:\d+:\d+\)?$/.test(line));
  const place = /:\d+:\d+(?=\)?$)/.exec(position ?? '')?.[0] ?? '';
  if (code !== undefined) {
    const inner = parts as ErrorParts;
    return new KvforgeError(code as ErrorCode, { ...inner, at: `${path}${place}: ${inner.at}` });
  }
  return new KvforgeError('invalid-scheme', {
    at: `${path}${place}`,
    expected: 'a file that loads',
    received: `${name}: ${message.split('\n')[0]!}`,
    hint: 'Correct the file.',
  });
}

type Refuse = (expected: string, received: string, hint: string) => never;

function isScheme(value: unknown): value is Scheme {
  return typeof value === 'object' && value !== null && 'keys' in value && 'values' in value;
}

function pick(exports: Record<string, unknown>, name: string | undefined, refuse: Refuse): Scheme {
  if (name !== undefined) {
    const chosen = exports[name];
    if (isScheme(chosen)) return chosen;
    const names = Object.keys(exports).filter((key) => isScheme(exports[key]));
    return refuse(
      `a scheme exported as ${name}`,
      names.join(', ') || 'no scheme',
      'A scheme is what defineScheme({...}) returns.',
    );
  }
  if (isScheme(exports.default)) return exports.default;
  const schemes = Object.entries(exports).filter(([, value]) => isScheme(value));
  if (schemes.length === 1) return schemes[0]![1] as Scheme;
  if (schemes.length === 0) {
    return refuse(
      'an exported scheme',
      Object.keys(exports).length === 0 ? 'no exports' : `only ${Object.keys(exports).join(', ')}`,
      'Write export default defineScheme({...}).',
    );
  }
  const names = schemes.map(([key]) => key);
  return refuse('one scheme', names.join(', '), `Pick one by its name: file.ts#${names[0]}.`);
}
