import { KvforgeError } from '../../dsl/errors.js';
import type { SequenceLengths } from '../record.js';
import { checkContents, checkLengths } from './checkContents.js';
import { shown } from './checkInput.js';
import { readContents, type SequenceContents } from './contents.js';
import { contentsFrom, parseCache } from './format.js';
import { cacheIdentity, checkSameIdentity } from './identity.js';
import type { CacheMemory } from './memory.js';

/**
 * The contents of every sequence of a file, all of it checked before anything of it is used.
 *
 * @throws KvforgeError `invalid-input` or `does-not-fit`, as `KvCache.load` says
 */
export async function checkedFile(file: Uint8Array, memory: CacheMemory): Promise<readonly SequenceContents[]> {
  const { geometry, layout, capacity } = memory;
  checkBytes(file, 'cache file', 'the bytes of a file, as a Uint8Array');
  const parsed = await parseCache(file);
  checkSameIdentity(cacheIdentity(memory), parsed.identity, 'cache file, ');
  const { sequences } = parsed;
  if (sequences.length > capacity.sequences) {
    throw new KvforgeError('does-not-fit', {
      at: 'cache file, sequences',
      expected: `at most ${capacity.sequences} (of this cache)`,
      received: String(sequences.length),
      hint: 'Open the cache with more sequences.',
    });
  }
  return sequences.map((lengths, sequence) => {
    const prefix = `cache file, sequence ${sequence}, `;
    const room = { prefix, hint: 'Open the cache with more tokens.', code: 'does-not-fit' } as const;
    checkLengths(layout, capacity.tokens, lengths, room);
    const contents = contentsFrom(parsed, layout, sequence);
    checkContents(geometry, contents, { ...room, hint: 'Save the cache again.' });
    return contents;
  });
}

/** @throws KvforgeError `invalid-input` for a share that is another layout's, or holds what kernels must not follow */
export function checkShare(share: Uint8Array, lengths: SequenceLengths, memory: CacheMemory): void {
  const { geometry, layout, capacity } = memory;
  checkBytes(share, 'share', 'the bytes that readShare gave, as a Uint8Array');
  if (share.byteLength !== layout.bytes) {
    throw new KvforgeError('invalid-input', {
      at: 'share',
      expected: `${layout.bytes} bytes (this cache's layout)`,
      received: String(share.byteLength),
      hint: 'Open both caches with the same scheme, model and capacity.',
    });
  }
  const origin = { prefix: '', hint: 'Pass the lengths that the other cache gave.', code: 'invalid-input' } as const;
  checkLengths(layout, capacity.tokens, lengths, origin);
  const hint = 'Pass the share and the lengths that the other cache gave.';
  checkContents(geometry, readContents(layout, share, lengths), { ...origin, prefix: 'share, ', hint });
}

function checkBytes(value: unknown, at: string, expected: string): void {
  if (value instanceof Uint8Array) return;
  throw new KvforgeError('wrong-use', { at, expected, received: shown(value), hint: 'Pass it as it was given.' });
}
