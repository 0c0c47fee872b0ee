import type { KernelDescriptor } from '../../codegen/manifest.js';
import type { DeviceBuffer, Launch } from '../device.js';
import type { BenchRow } from './schema.js';

/** Result of holding an output to float64. */
export interface Checked {
  /** Largest error of a head's output over its largest magnitude; infinite where an output is not a number. */
  readonly maxError: number;
  /** What it must not exceed. */
  readonly bar: number;
  /** Which outputs were compared, for people. */
  readonly what: string;
}

/**
 * Attention of one query token a sequence over a batch, prepared in as many copies as it takes for what one launch has
 * read to have left the caches when it is read again.
 */
export interface Contender {
  readonly name: string;
  /** By stage, what its kernels were generated with. */
  readonly tunables: BenchRow['tunables'];
  /** Allocated for what one copy holds of its tokens. */
  readonly bytes: number;
  /** What one attention has to read of them, each byte once. */
  readonly bytesRead: number;
  /** Additions and multiplications that the definition asks for, whatever the kernel saves. */
  readonly operations: number;
  readonly copies: number;
  /** What a run reads of a copy has left the caches when its turn comes again. */
  readonly cold: boolean;
  /** Numbers of splits worth a try, the default first. */
  readonly splits: readonly number[];
  /**
   * The launches of one attention, a list for every copy.
   *
   * @param owned takes what is allocated for them
   */
  lists(splits: number, owned: DeviceBuffer[]): readonly (readonly Launch[])[];
  /** Attends with the first copy, and holds some of the outputs to float64. */
  check(splits: number): Promise<Checked>;
  release(): void;
}

/** Caches hold a quarter of what rotates through them, and a half at most of what counts as cold. */
const rotation = 4;
const leastRotation = 2;
const mostCopies = 512;
/** Bytes of all copies: filling more takes minutes. */
const mostHeld = 2 ** 34;

/**
 * Copies that a cache cannot hold together, by the bytes that a run reads of one; one copy where no cache is known, and
 * then nothing is cold.
 */
export function copiesFor(
  { read, held }: { readonly read: number; readonly held: number },
  cacheBytes: number | undefined,
): { readonly copies: number; readonly cold: boolean } {
  const wanted = Math.ceil(((cacheBytes ?? 0) * rotation) / read);
  const copies = Math.max(1, Math.min(wanted, mostCopies, Math.floor(mostHeld / held)));
  return { copies, cold: isCold(copies * read, cacheBytes) };
}

/** Whether bytes that are read in turn come from memory each time. */
export function isCold(bytes: number, cacheBytes: number | undefined): boolean {
  return cacheBytes !== undefined && bytes >= leastRotation * cacheBytes;
}

/** Bytes that may wait to be written before the device is waited for: a queue of gigabytes would fill the memory. */
const mostWaiting = 2 ** 28;

/** Counts what is written, and waits for the device now and then. */
export class WriteQueue {
  readonly #drain: () => Promise<unknown>;
  #waiting = 0;

  /** @param drain resolves when the device has done what it was asked before */
  constructor(drain: () => Promise<unknown>) {
    this.#drain = drain;
  }

  async wrote(bytes: number): Promise<void> {
    this.#waiting += bytes;
    if (this.#waiting < mostWaiting) return;
    await this.#drain();
    this.#waiting = 0;
  }
}

/** Tunables by stage, as kernels were generated with. */
export function tunablesByStage(kernels: readonly KernelDescriptor[]): BenchRow['tunables'] {
  return Object.fromEntries(kernels.map(({ stage, tunables }) => [stage, tunables]));
}
