import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { KvforgeError } from '../../dsl/errors.js';

/** Numbers of the protocol; host.cc has the same. */
export const Message = { allocate: 1, write: 2, read: 3, release: 4, load: 5, run: 6, quit: 7, hello: 8 } as const;
const Status = { done: 0, error: 1, fault: 2, crash: 3 } as const;

/** A fault as the host program sends it: JSON, not yet words. */
export class FaultReport {
  constructor(
    readonly json: string,
    /** Whether the process ended with it. */
    readonly crashed: boolean,
  ) {}
}

interface Pending {
  readonly resolve: (reply: Buffer) => void;
  readonly reject: (reason: unknown) => void;
  readonly timeoutMs: number | undefined;
  readonly task: string;
}

interface Unrefable {
  ref?(): void;
  unref?(): void;
}

/** The emulator process: requests go in order, replies come in order. */
export class EmulatorProcess {
  #child: ChildProcess;
  #input: Writable;
  #output: Readable;
  #pending: Pending[] = [];
  #chunks: Buffer[] = [];
  #received = 0;
  #timer: NodeJS.Timeout | undefined;
  #lost: string | undefined;
  #closing = false;
  #exited: Promise<void>;

  constructor(program: string) {
    this.#child = spawn(program, [], { stdio: ['pipe', 'pipe', 'ignore'] });
    this.#input = this.#child.stdin!;
    this.#output = this.#child.stdout!;
    this.#output.on('data', (chunk: Buffer) => this.#receive(chunk));
    // A write to a process that has ended: its end is reported by 'close' below.
    this.#input.on('error', () => {});
    this.#exited = new Promise((resolve) => {
      this.#child.on('error', (error) => {
        this.#fail(`a process that does not start (${error.message})`);
        resolve();
      });
      this.#child.on('close', (code, signal) => {
        this.#fail(signal === null ? `its exit with code ${code}` : `its end by ${signal}`);
        resolve();
      });
    });
    this.#keepAlive(false);
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  /** Throws when the process has ended. */
  check(): void {
    if (this.#lost === undefined) return;
    throw this.#lostError(`a device lost before, by ${this.#lost}`);
  }

  /** Sends one request. `timeoutMs` counts from when the process turns to it; past it, the process is killed. */
  request(message: number, parts: readonly Uint8Array[], task: string, timeoutMs?: number): Promise<Buffer> {
    this.check();
    const header = Buffer.alloc(16);
    header.writeUInt32LE(message, 0);
    header.writeBigUInt64LE(BigInt(parts.reduce((sum, part) => sum + part.byteLength, 0)), 8);
    this.#input.cork();
    this.#input.write(header);
    for (const part of parts) if (part.byteLength > 0) this.#input.write(part);
    this.#input.uncork();
    return new Promise((resolve, reject) => {
      this.#pending.push({ resolve, reject, timeoutMs, task });
      if (this.#pending.length === 1) {
        this.#keepAlive(true);
        this.#startTimer();
      }
    });
  }

  /** Ends the process and waits for its end; requests not answered yet are. */
  async close(): Promise<void> {
    if (!this.#closing) {
      // Also a lost process may not have ended yet.
      this.#keepAlive(true);
      this.#closing = true;
      const header = Buffer.alloc(16);
      header.writeUInt32LE(Message.quit, 0);
      if (this.#lost === undefined) this.#input.end(header);
    }
    await this.#exited;
  }

  /** An idle emulator must not keep Node running; a request under way must, and so must the wait for its end. */
  #keepAlive(busy: boolean): void {
    if (this.#closing) return;
    for (const handle of [this.#child, this.#input as Unrefable, this.#output as Unrefable] as const) {
      if (busy) handle.ref?.();
      else handle.unref?.();
    }
  }

  #startTimer(): void {
    clearTimeout(this.#timer);
    const head = this.#pending[0];
    if (head?.timeoutMs === undefined) return;
    const seconds = head.timeoutMs / 1000;
    this.#timer = setTimeout(() => {
      this.#fail(`a time-out of ${seconds} s in ${head.task}`);
      this.#child.kill('SIGKILL');
    }, head.timeoutMs);
  }

  #lostError(received: string): KvforgeError {
    return new KvforgeError('device-lost', {
      at: 'emulator',
      expected: 'a running emulator process',
      received,
      hint: 'Open a new device; the buffers of this one are gone.',
    });
  }

  #fail(reason: string): void {
    this.#lost ??= reason;
    clearTimeout(this.#timer);
    const pending = this.#pending;
    this.#pending = [];
    for (const request of pending) request.reject(this.#lostError(this.#lost));
    this.#keepAlive(false);
  }

  #receive(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#received += chunk.byteLength;
    while (this.#received >= 16) {
      const first = this.#chunks[0]!;
      if (first.byteLength < 16) {
        this.#chunks = [Buffer.concat(this.#chunks)];
        continue;
      }
      const length = Number(first.readBigUInt64LE(8));
      if (this.#received < 16 + length) return;
      const all = this.#chunks.length === 1 ? first : Buffer.concat(this.#chunks);
      const rest = all.subarray(16 + length);
      this.#chunks = rest.byteLength > 0 ? [rest] : [];
      this.#received = rest.byteLength;
      this.#settle(all.readUInt32LE(0), all.subarray(16, 16 + length));
    }
  }

  #settle(status: number, payload: Buffer): void {
    const request = this.#pending.shift();
    this.#startTimer();
    if (this.#pending.length === 0) this.#keepAlive(false);
    if (request === undefined) return;
    const text = status === Status.done ? '' : payload.toString('utf8');
    if (status === Status.done) request.resolve(payload);
    else if (status === Status.error) request.reject(new Error(text));
    else request.reject(new FaultReport(text, status === Status.crash));
    if (status === Status.crash) this.#lost ??= 'a crash of a kernel';
  }
}
