import { type ChildProcess, fork } from 'node:child_process';
import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import type { DeviceFacts, Failure, Reply, Request } from './protocol.js';

/** What came of a request: an answer, or how the process ended before there was one. */
export type Outcome = Reply | { readonly type: 'crashed' | 'hung'; readonly reason: string };

/** Takes measurements; whatever becomes of one, the next can be asked for. */
export interface Measurer {
  /**
   * Opens the device, unless it is open.
   *
   * @throws KvforgeError where it cannot be opened
   */
  facts(): Promise<DeviceFacts>;
  /** @param limitMs after which the measurement is given up, and counts as hung */
  ask(request: Exclude<Request, { type: 'open' }>, limitMs: number): Promise<Outcome>;
  /** What is asked for then, and later, is never answered: it would be taken for a crash, and remembered as one. */
  close(): Promise<void>;
}

export interface ChildOptions {
  /** Module of the process: it answers requests by `worker`. */
  readonly entry: string;
  readonly execArgv: readonly string[];
  readonly open: Extract<Request, { type: 'open' }>;
}

/** Opening a device compiles nothing; a driver that takes longer will not come. */
const openLimitMs = 60_000;
/** Of what the process wrote to stderr, so much is kept for the report. */
const keptErrorLength = 2000;
/** How long that is waited for after the process has ended. */
const lastWordsMs = 200;

const never = new Promise<never>(() => {});

/** A process for what may hang or crash: it is replaced when it does. */
export class ChildMeasurer implements Measurer {
  readonly #options: ChildOptions;
  #child: { readonly process: ChildProcess; readonly facts: DeviceFacts } | undefined;
  #stderr = '';
  #closed = false;

  constructor(options: ChildOptions) {
    this.#options = options;
  }

  async facts(): Promise<DeviceFacts> {
    return (await this.#ready()).facts;
  }

  async ask(request: Exclude<Request, { type: 'open' }>, limitMs: number): Promise<Outcome> {
    const { process } = await this.#ready();
    const outcome = await this.#send(process, request, limitMs);
    if (this.#closed) return never;
    if (!endsProcess(outcome)) return outcome;
    await this.#end();
    const lost = outcome.type === 'failed' && outcome.failure.code === 'device-lost';
    return lost ? { type: 'crashed', reason: failureText(outcome.failure) } : outcome;
  }

  close(): Promise<void> {
    this.#closed = true;
    return this.#end();
  }

  /** The process, opened unless it is. */
  async #ready(): Promise<{ readonly process: ChildProcess; readonly facts: DeviceFacts }> {
    if (this.#closed) return never;
    this.#child ??= await this.#open();
    const child = this.#child;
    if (!this.#closed) return child;
    await this.#end();
    return never;
  }

  async #end(): Promise<void> {
    const child = this.#child;
    this.#child = undefined;
    if (child) await end(child.process);
  }

  async #open(): Promise<{ process: ChildProcess; facts: DeviceFacts }> {
    this.#stderr = '';
    const { entry, execArgv, open } = this.#options;
    const child = fork(entry, [], {
      execArgv: [...execArgv],
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-keptErrorLength);
    });
    const outcome = await this.#send(child, open, openLimitMs);
    if (outcome.type === 'opened') return { process: child, facts: outcome.facts };
    await end(child);
    if (outcome.type === 'failed') throw errorOf(outcome.failure);
    throw new KvforgeError('device-lost', {
      at: `device ${open.device}`,
      expected: 'a device that opens',
      received: 'reason' in outcome ? outcome.reason : outcome.type,
      hint: 'Run kvforge doctor.',
    });
  }

  #send(child: ChildProcess, request: Request, limitMs: number): Promise<Outcome> {
    return new Promise((resolve) => {
      const settle = (outcome: Outcome) => {
        clearTimeout(timer);
        child.off('message', onMessage).off('exit', onExit).off('close', onClose).off('error', onError);
        resolve(outcome);
      };
      const onMessage = (reply: unknown) => settle(reply as Reply);
      const onClose = (code: number | null, signal: NodeJS.Signals | null) => {
        const ending = signal === null ? `exit code ${code}` : signal;
        const said = this.#stderr.trim();
        settle({ type: 'crashed', reason: `the process ended with ${ending}${said === '' ? '' : `: ${said}`}` });
      };
      // What it wrote last may come after its end; something that it started may keep the stream open.
      const onExit = (code: number | null, signal: NodeJS.Signals | null) =>
        void setTimeout(() => onClose(code, signal), lastWordsMs);
      const onError = (error: Error) => settle({ type: 'crashed', reason: error.message });
      const timer = setTimeout(() => settle({ type: 'hung', reason: `no answer in ${limitMs} ms` }), limitMs);
      child.on('message', onMessage).on('exit', onExit).on('close', onClose).on('error', onError);
      if (child.exitCode !== null || child.signalCode !== null) onClose(child.exitCode, child.signalCode);
      else child.send(request, (error) => error && onError(error));
    });
  }
}

/** Whether the next request needs a new process: after a fault of a kernel the device of the old one may be lost. */
export function endsProcess(outcome: Outcome): boolean {
  if (outcome.type === 'failed') return ['device-lost', 'kernel-fault'].includes(outcome.failure.code);
  return outcome.type === 'crashed' || outcome.type === 'hung';
}

/** Ends a process that may not listen any more. */
function end(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) return resolve();
    child.once('exit', () => resolve());
    child.kill('SIGKILL');
  });
}

/** A failure as the error it was. */
export function errorOf({ code, ...parts }: Failure): Error {
  if (code === 'internal') return new Error(parts.received);
  return new KvforgeError(code as ErrorCode, parts);
}

/** A failure in one sentence. */
export function failureText({ at, expected, received }: Omit<Failure, 'code' | 'hint'>): string {
  return `${at}: expected ${expected}, got ${received}`;
}
