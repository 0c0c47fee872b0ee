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
    checkLengths(layout, capacity.tokens, lengths, { prefix, hint: moreRoom, code: 'does-not-fit' });
    const contents = contentsFrom(parsed, layout, sequence);
    checkContents(geometry, contents, { prefix, hint: 'Save the cache again.' });
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
  const lengthHint = () => 'Pass the lengths that the other cache gave.';
  checkLengths(layout, capacity.tokens, lengths, { prefix: '', hint: lengthHint, code: 'invalid-input' });
  const hint = 'Pass the share and the lengths that the other cache gave.';
  checkContents(geometry, readContents(layout, share, lengths), { prefix: 'share, ', hint });
}

function moreRoom(length: keyof SequenceLengths): string {
  return `Open the cache with more ${length === 'streamTokens' ? 'generated tokens' : 'tokens'}.`;
}

function checkBytes(value: unknown, at: string, expected: string): void {
  if (value instanceof Uint8Array) return;
  throw new KvforgeError('wrong-use', { at, expected, received: shown(value), hint: 'Pass it as it was given.' });
}
