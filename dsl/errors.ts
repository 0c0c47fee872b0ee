/** What went wrong, as data: each kind of fault has one code, which `--json` output repeats. */
export type ErrorCode =
  | 'invalid-scheme'
  | 'invalid-model'
  | 'invalid-codec'
  | 'lowering'
  | 'does-not-fit'
  | 'invalid-input'
  | 'missing-capability'
  | 'compile-failed'
  | 'kernel-fault'
  | 'device-lost'
  | 'check-failed'
  | 'wrong-use';

export interface ErrorParts {
  /** Path into a descriptor (`keys[1].rank`), file position (`my.ts:4:7`) or buffer name. */
  readonly at: string;
  readonly expected: string;
  readonly received: string;
  /** The next thing to do, as a sentence. */
  readonly hint: string;
}

/**
 * The one error class of kvforge: where, what was expected, what came, what to do next.
 *
 * @example
 * new KvforgeError('invalid-scheme', {
 *   at: 'keys[1].rank', expected: 'at most 192', received: '256', hint: 'Lower the rank.',
 * }).message; // 'keys[1].rank: expected at most 192, got 256. Lower the rank.'
 */
export class KvforgeError extends Error {
  readonly code: ErrorCode;
  readonly parts: ErrorParts;

  constructor(code: ErrorCode, parts: ErrorParts, options?: ErrorOptions) {
    super(`${parts.at}: expected ${parts.expected}, got ${parts.received}. ${parts.hint}`, options);
    this.name = 'KvforgeError';
    this.code = code;
    this.parts = parts;
  }
}
