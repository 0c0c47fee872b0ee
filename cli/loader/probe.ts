/** A process that loads a user's file and reads its scheme, and says whether that ends, and how. */
import { KvforgeError } from '../../dsl/errors.js';
import { defineScheme, type Scheme } from '../../dsl/scheme.js';
import { pick } from './pick.js';
import { importUserFile, type PlainError, plainError } from './userModule.js';

/** What the process is asked, as its one argument. */
export interface ProbeRequest {
  readonly url: string;
  readonly cache: string;
  /** As the user wrote it: the place of errors. */
  readonly path: string;
  readonly exportName?: string;
  readonly headDim: number;
}

export type ProbeReport =
  | { readonly ended: 'well' }
  /** `while`: whether the file failed as it was loaded, or its scheme as it was read. */
  | { readonly ended: 'error'; readonly while: 'loading' | 'reading'; readonly error: PlainError };

// Whatever the file and its scheme do, they do here first: the process that calls this one must not hang.
async function probe({ url, cache, path, exportName, headDim }: ProbeRequest): Promise<ProbeReport> {
  process.setSourceMapsEnabled(true);
  let step: 'loading' | 'reading' = 'loading';
  try {
    const exports = await importUserFile(url, cache);
    step = 'reading';
    const scheme = pick(exports, exportName, path);
    for (const part of ['name', 'keys', 'values', 'sinks', 'window', 'stream']) readAll(scheme, part, part);
    defineScheme(scheme);
    callLevels(scheme, headDim);
    return { ended: 'well' };
  } catch (error) {
    return { ended: 'error', while: step, error: plainError(error) };
  }
}

/** Reads a property and all below it: a getter or a proxy is the user's code as well. */
function readAll(owner: object, key: PropertyKey, at: string, seen = new Set<object>()): void {
  let value: unknown;
  let below: readonly PropertyKey[] = [];
  try {
    value = Reflect.get(owner, key);
    if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value) || seen.has(value)) return;
    below = Reflect.ownKeys(value);
  } catch (error) {
    const { name, message, stack } = plainError(error);
    const fault = new KvforgeError('invalid-scheme', {
      at,
      expected: 'a property that can be read',
      received: `${name}: ${message}`,
      hint: 'Write it as a plain value.',
    });
    // The line of the user's file is in it.
    fault.stack = stack;
    throw fault;
  }
  seen.add(value);
  for (const each of below) {
    const isIndex = Array.isArray(value) && typeof each === 'string' && /^\d+$/.test(each);
    readAll(value, each, isIndex ? `${at}[${each}]` : `${at}.${String(each)}`, seen);
  }
}

/** What a table throws for a head dimension is the business of whoever needs the table. */
function callLevels({ stream }: Scheme, headDim: number): void {
  try {
    Array.from(stream.levels(headDim), Math.fround);
  } catch {}
}

process.send!(await probe(JSON.parse(process.argv[2]!) as ProbeRequest), () => process.exit());
