import { fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, realpath, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import { defineScheme, isLatent, type Scheme } from '../../dsl/scheme.js';
import { pick } from './pick.js';
import type { ProbeReport, ProbeRequest } from './probe.js';
import { besides, importUserFile, type PlainError, plainError } from './userModule.js';

/**
 * Loads a scheme from a user's file: its default export, its only scheme, or the one named after `#`.
 *
 * The file is loaded and its scheme read in a child process first: one that never ends is killed there.
 *
 * @param headDim what the scheme's tables will be asked for
 * @throws KvforgeError `invalid-scheme` with the file, and the line where there is one
 * @example
 * await loadScheme('./my-schemes.ts#small', model.headDim);
 */
export async function loadScheme(given: string, headDim: number, limitMs = 20_000): Promise<Scheme> {
  const { path, exportName } = existsSync(given) ? { path: given, exportName: undefined } : splitName(given);
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
    const report = await probe(
      { url, cache, path, headDim, ...(exportName === undefined ? {} : { exportName }) },
      limitMs,
    );
    if (report.ended === 'never') {
      refuse(
        `a file that loads within ${limitMs / 1000} s`,
        'one that was still running',
        'Look for a loop, or a promise that never settles.',
      );
    } else if (report.ended === 'early') {
      refuse('a file that loads', ...earlyEnd(report));
    } else if (report.ended === 'error') {
      throw faultOf(report.error, report.while, path, file);
    }
    let step: Step = 'loading';
    try {
      const exports = await importUserFile(url, cache);
      step = 'reading';
      const scheme: Scheme = defineScheme(pick(exports, exportName, path));
      const { name, sinks, window, stream } = scheme;
      const codes = isLatent(scheme)
        ? { latent: scheme.latent, rotary: scheme.rotary }
        : { keys: scheme.keys, values: scheme.values };
      // A plain object: as a promise's value, a proxy or an object with a `then` would run once more.
      // Its type loses which keys go with which values, as they are taken apart here.
      return { name, ...codes, sinks, window, stream } as Scheme;
    } catch (error) {
      throw faultOf(plainError(error), step, path, file);
    }
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

type Step = 'loading' | 'reading';

/** A child that ended before it reported anything. */
interface EarlyEnd {
  readonly ended: 'early';
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

function probe(request: ProbeRequest, limitMs: number): Promise<ProbeReport | EarlyEnd | { readonly ended: 'never' }> {
  return new Promise((settle, reject) => {
    const child = fork(fileURLToPath(besides('./probe')), [JSON.stringify(request)], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    let result: ProbeReport | { readonly ended: 'never' } | undefined;
    const timer = setTimeout(() => {
      result ??= { ended: 'never' };
      child.kill('SIGKILL');
    }, limitMs);
    child.on('message', (message) => {
      result ??= message as ProbeReport;
    });
    child.on('error', reject);
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      settle(result ?? { ended: 'early', code, signal });
    });
  });
}

/** What Node ends with when a top-level await can never settle. */
const unsettledCode = 13;

function earlyEnd({ code, signal }: EarlyEnd): [received: string, hint: string] {
  if (signal !== null) return [`one that ended the process by ${signal}`, 'Remove what ends or exhausts the process.'];
  if (code === unsettledCode) {
    return ['one that never finished loading', 'Look for an await of a promise that never settles.'];
  }
  return [`one that ended the process with code ${code}`, 'Remove the call that exits.'];
}

function faultOf(error: PlainError, step: Step, path: string, file: string): KvforgeError {
  const { name, message, stack, code, parts } = error;
  const position = stack.split('\n').find((line) => line.includes(file) && /:\d+:\d+\)?$/.test(line));
  const place = `${path}${/:\d+:\d+(?=\)?$)/.exec(position ?? '')?.[0] ?? ''}`;
  if (code !== undefined && parts !== undefined) {
    // What refuses the file as a whole names it already.
    return new KvforgeError(code as ErrorCode, { ...parts, at: parts.at === path ? path : `${place}: ${parts.at}` });
  }
  return new KvforgeError('invalid-scheme', {
    at: place,
    expected: step === 'loading' ? 'a file that loads' : 'a scheme that can be read',
    received: `${name}: ${message.split('\n')[0]!}`,
    hint: 'Correct the file.',
  });
}
