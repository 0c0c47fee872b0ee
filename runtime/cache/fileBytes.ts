import { KvforgeError } from '../../dsl/errors.js';

/** Engines neither hash nor read as much in one piece. */
const fileLimit = 2 ** 31;

/** @throws KvforgeError `does-not-fit` for a cache file of 2 GiB or more */
export function checkFileBytes(bytes: number): void {
  if (bytes < fileLimit) return;
  throw new KvforgeError('does-not-fit', {
    at: 'cache file',
    expected: `less than ${fileLimit} bytes`,
    received: String(bytes),
    hint: 'Spread the sequences over several caches, and save each to a file of its own.',
  });
}
