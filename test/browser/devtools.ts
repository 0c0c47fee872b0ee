import type { Readable, Writable } from 'node:stream';

/** A message of the Chrome DevTools Protocol. */
interface Message {
  readonly id?: number;
  readonly result?: unknown;
  readonly error?: { readonly message: string };
}

interface Waiting {
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/** The Chrome DevTools Protocol over the pipe of `--remote-debugging-pipe`: JSON texts that end in a zero byte. */
export class Devtools {
  readonly #input: Writable;
  readonly #waiting = new Map<number, Waiting>();
  #last = 0;
  #rest = '';
  #closed: Error | undefined;

  constructor(input: Writable, output: Readable) {
    this.#input = input;
    // A browser that ends while it is written to is told by `fail`.
    input.on('error', () => {});
    output.setEncoding('utf8');
    output.on('data', (text: string) => this.#receive(text));
  }

  /** Calls a method, of a page where there is a session. */
  send(method: string, params: object = {}, sessionId?: string): Promise<unknown> {
    if (this.#closed) return Promise.reject(this.#closed);
    const id = ++this.#last;
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    this.#input.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return answer;
  }

  /** Ends every call that waits, and every later one. */
  fail(error: Error): void {
    this.#closed = error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  #receive(text: string): void {
    const messages = `${this.#rest}${text}`.split('\0');
    this.#rest = messages.pop()!;
    for (const message of messages) {
      const { id, result, error } = JSON.parse(message) as Message;
      const waiting = id === undefined ? undefined : this.#waiting.get(id);
      if (id === undefined || waiting === undefined) continue;
      this.#waiting.delete(id);
      if (error) waiting.reject(new Error(error.message));
      else waiting.resolve(result);
    }
  }
}
