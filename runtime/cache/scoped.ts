import type { DeviceBuffer } from '../device.js';
import { emptyLengths } from './lengths.js';
import type { CacheMemory } from './memory.js';

/** Frees the buffers that the work put into `owned`, whatever happens. */
export async function scoped<T>(work: (owned: DeviceBuffer[]) => Promise<T>): Promise<T> {
  const owned: DeviceBuffer[] = [];
  try {
    return await work(owned);
  } finally {
    for (const buffer of owned) buffer.release();
  }
}

/**
 * Work on the shares of some sequences, with buffers of its own. If it fails they hold nothing, rather than lengths of
 * tokens that were never coded.
 */
export async function scopedOrEmpty(
  memory: CacheMemory,
  sequences: readonly number[],
  work: (owned: DeviceBuffer[]) => Promise<void>,
): Promise<void> {
  try {
    await scoped(work);
  } catch (fault) {
    try {
      for (const sequence of sequences) memory.writeRecord(sequence, emptyLengths);
    } catch {
      // The device is gone, and the cache with it; the fault itself is what the caller must see.
    }
    throw fault;
  }
}
