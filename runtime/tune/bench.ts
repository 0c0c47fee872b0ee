import type { DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import type { Variant } from './protocol.js';

/** Lists of launches that do the same on different inputs. */
export interface Prepared {
  readonly lists: readonly (readonly Launch[])[];
  /** Bytes that one list reads at least once. */
  readonly bytes: number;
  /** The lists together go through more than the device's cache holds. */
  readonly cold: boolean;
  readonly release: () => void;
}

/** The inputs of one stage and shape on a device, which every candidate is timed on. */
export interface Bench {
  prepare(kernels: LoadedKernels, variant: Variant): Promise<Prepared>;
  release(): void;
}

/** What rotates through the cache of a device, in times its size: with less, part of it would still be there. */
const timesCache = 2;
/** More inputs than this take longer to set up than they are worth. */
const mostCopies = 256;

/** How many inputs of a size it takes to leave nothing of the first in the cache when it comes again. */
export function copiesFor(bytes: number, cacheBytes: number | undefined): { copies: number; cold: boolean } {
  if (cacheBytes === undefined) return { copies: 1, cold: false };
  const copies = Math.max(1, Math.ceil((timesCache * cacheBytes) / Math.max(1, bytes)));
  return { copies: Math.min(copies, mostCopies), cold: copies <= mostCopies };
}

/** Frees buffers, whatever one of them does. */
export function releaseAll(buffers: readonly DeviceBuffer[]): void {
  for (const buffer of buffers) buffer.release();
}
