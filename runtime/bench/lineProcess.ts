import { type ChildProcessByStdio, spawn } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { KvforgeError } from '../../dsl/errors.js';

/** A reply is a list of times; what is longer is something else. */
const mostBytes = 2 ** 20;
/** Of what a process writes to stderr, what may say why it ended. */
const keptErrors = 4096;

interface Waiting {
  readonly resolve: (line: string) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * A process that answers every line with a line. One that ends, is silent for too long, or answers too much is ended,
 * and every request from then on fails with the reason.
 */
export class LineProcess {
  readonly #child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly #name: string;
  readonly #lines: string[] = [];
  #partial = '';
  #errors = '';
  #waiting: Waiting | undefined;
  #failure: KvforgeError | undefined;

  /** @param name how errors call it */
  constructor(
    name: string,
    program: string,
    args: readonly string[],
    environment: Readonly<Record<string, string>> = {},
  ) {
    this.#name = name;
    this.#child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'], env: { ...process.env, ...environment } });
    this.#child.on('error', (error: NodeJS.ErrnoException) => {
      this.#fail('a program that starts', error.code === 'ENOENT' ? `no program ${program}` : error.message);
    });
    // What it wrote last is read before this comes.
    this.#child.on('close', (code, signal) => {
      const last = this.#errors.trim().split('\n').at(-1)!;
      const end = signal === null ? `exit code ${code}` : `signal ${signal}`;
      this.#fail('an answer', `its end with ${end}${last === '' ? '' : `: ${last.slice(0, 200)}`}`);
    });
    // A process that has ended reads no more; `close` says why.
    this.#child.stdin.on('error', () => {});
    this.#child.stdout.setEncoding('utf8').on('data', (text: string) => this.#take(text));
    this.#child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errors = (this.#errors + text).slice(-keptErrors);
    });
  }

  /** The next line of its own accord, or that answers a request. */
  async answer(limitMs: number, request?: object): Promise<string> {
    if (this.#failure) throw this.#failure;
    // It would be taken for the answer.
    if (request && this.#lines.length > 0)
      this.refuse('one answer to a request', `another: ${this.#lines[0]!.slice(0, 80)}`);
    if (request) this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    const line = this.#lines.shift();
    if (line !== undefined) return line;
    const answered = new Promise<string>((resolve, reject) => {
      this.#waiting = { resolve, reject };
    });
    const timer = setTimeout(() => this.#fail('an answer', `none within ${limitMs / 1000} s`), limitMs);
    try {
      return await answered;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Ends it; a process that hangs is not asked. */
  close(): void {
    this.#child.kill('SIGKILL');
  }

  /** Ends it because of an answer that is none. */
  refuse(expected: string, received: string): never {
    this.#fail(expected, received);
    throw this.#failure;
  }

  #take(text: string): void {
    const lines = (this.#partial + text).split('\n');
    this.#partial = lines.pop()!;
    this.#lines.push(...lines);
    if (this.#partial.length > mostBytes) this.#fail('an answer', `more than ${mostBytes} characters without an end`);
    if (this.#waiting === undefined || this.#lines.length === 0) return;
    const { resolve } = this.#waiting;
    this.#waiting = undefined;
    resolve(this.#lines.shift()!);
  }

  #fail(expected: string, received: string): void {
    const hint = 'Run it by itself to see what it prints.';
    this.#failure ??= new KvforgeError('missing-capability', { at: this.#name, expected, received, hint });
    this.#waiting?.reject(this.#failure);
    this.#waiting = undefined;
    this.close();
  }
}
