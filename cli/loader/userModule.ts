import { register } from 'node:module';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ErrorParts } from '../../dsl/errors.js';
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
  readonly parts?: ErrorParts;
}

/** What was thrown may be anything, whose properties and `toString` throw in turn. */
export function plainError(error: unknown): PlainError {
  try {
    if (error instanceof Error) return ofError(error);
  } catch {
    // Then it has no more to say than that it was thrown.
  }
  return { name: 'Error', message: `a thrown ${typeof error}: ${textOf(() => error)}`, stack: '' };
}

function ofError(error: Error & { readonly code?: unknown; readonly parts?: unknown }): PlainError {
  const { name, message, stack, code, parts } = error;
  const isKvforgeError = name === 'KvforgeError' && typeof code === 'string' && isParts(parts);
  return {
    name: textOf(() => name),
    message: textOf(() => message),
    stack: textOf(() => stack),
    ...(isKvforgeError ? { code, parts } : {}),
  };
}

function textOf(read: () => unknown): string {
  try {
    return String(read() ?? '');
  } catch {
    return 'something without a text';
  }
}

function isParts(parts: unknown): parts is ErrorParts {
  const given = parts as Partial<Record<keyof ErrorParts, unknown>> | null | undefined;
  return (['at', 'expected', 'received', 'hint'] as const).every((part) => typeof given?.[part] === 'string');
}
