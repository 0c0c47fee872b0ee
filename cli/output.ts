import type { ErrorCode } from '../dsl/errors.js';

/** Exit codes of every command. */
export const exitCodes = { done: 0, failed: 1, wrongUse: 2, missing: 3, interrupted: 130 } as const;
export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes];

/** What a command found out: the JSON document, and the same for people. */
export interface Outcome {
  readonly json: object;
  readonly text: string;
  /** 0 if left out. */
  readonly code?: ExitCode;
}

/** Where output goes; `main.ts` gives the process's own streams, tests give strings. */
export interface Streams {
  readonly out: (text: string) => void;
  readonly err: (text: string) => void;
  readonly outIsTerminal: boolean;
}

/** What a command may use of its surroundings. */
export interface Context {
  /** One line to stderr. */
  readonly progress: (line: string) => void;
  /** Runs `close` if the user interrupts before `release` is called. */
  readonly onInterrupt: (close: () => Promise<void>) => { release: () => void };
  readonly colors: boolean;
}

export interface ErrorReport {
  readonly code: ErrorCode | 'interrupted' | 'internal';
  readonly message: string;
  readonly hint: string;
}

/** An error of the command line itself: an unknown option, a missing argument. */
export class UsageError extends Error {
  constructor(
    message: string,
    readonly hint: string,
  ) {
    super(message);
    this.name = 'UsageError';
  }
}

interface KvforgeErrorLike extends Error {
  readonly code: ErrorCode;
  readonly parts: { readonly at: string; readonly expected: string; readonly received: string; readonly hint: string };
}

// By form, not by class: a user's scheme file may load a second copy of the package.
function isKvforgeError(error: unknown): error is KvforgeErrorLike {
  return error instanceof Error && error.name === 'KvforgeError' && 'code' in error && 'parts' in error;
}

/** An error as `--json` prints it. */
export function reportError(error: unknown): ErrorReport {
  if (error instanceof UsageError) return { code: 'wrong-use', message: error.message, hint: error.hint };
  if (isKvforgeError(error)) {
    const { at, expected, received, hint } = error.parts;
    return { code: error.code, message: `${at}: expected ${expected}, got ${received}`, hint };
  }
  const message = error instanceof Error ? error.message : String(error);
  return {
    code: 'internal',
    message,
    hint: 'This is a fault of kvforge; report it with the output of kvforge doctor.',
  };
}

/** What the process ends with after an error. */
export function exitCodeOf(code: ErrorReport['code']): ExitCode {
  switch (code) {
    case 'interrupted':
      return exitCodes.interrupted;
    case 'missing-capability':
      return exitCodes.missing;
    case 'check-failed':
    case 'compile-failed':
    case 'kernel-fault':
    case 'device-lost':
    case 'internal':
      return exitCodes.failed;
    default:
      return exitCodes.wrongUse;
  }
}

/** Exactly one document, and a final newline. */
export function jsonDocument(value: object): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

/** An error for people: what happened, then what to do. */
export function errorText({ message, hint }: ErrorReport, paint: (text: string) => string): string {
  return `${paint('error:')} ${message}\n${hint === '' ? '' : `  ${hint}\n`}`;
}
