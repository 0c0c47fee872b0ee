import { register } from 'node:module';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { HookData } from './hooks.js';

/** `.ts` from the sources, `.js` from dist. */
const ending = extname(fileURLToPath(import.meta.url));

/** The file of this package beside the running one. */
export function besides(path: string): URL {
  return new URL(path + ending, import.meta.url);
}

let registered = false;

/** Imports a user's file with the hooks of `hooks.ts`. */
export async function importUserFile(url: string, cache: string): Promise<Record<string, unknown>> {
  if (!registered) {
    const packages = {
      kvforge: besides('../../dsl/index').href,
      'kvforge/codegen': besides('../../codegen/index').href,
      'kvforge/runtime': besides('../../runtime/index').href,
    };
    const own = ['dsl', 'codegen', 'runtime'].map((folder) => new URL(`../../${folder}/`, import.meta.url).href);
    register<HookData>(besides('./hooks').href, { data: { packages, own, cache } });
    registered = true;
  }
  return (await import(url)) as Record<string, unknown>;
}

/** An error in a form that passes between processes. */
export interface PlainError {
  readonly name: string;
  readonly message: string;
  readonly stack: string;
  /** Of a KvforgeError. */
  readonly code?: string;
  readonly parts?: unknown;
}

export function plainError(error: unknown): PlainError {
  if (!(error instanceof Error))
    return { name: 'Error', message: `a thrown ${typeof error}: ${String(error)}`, stack: '' };
  const { name, message, stack = '', code, parts } = error as Error & { code?: string; parts?: unknown };
  return { name, message, stack, ...(name === 'KvforgeError' && code !== undefined ? { code, parts } : {}) };
}
