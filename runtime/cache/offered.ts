import { KvforgeError } from '../../dsl/errors.js';
import type { SequenceLengths } from '../record.js';
import { checkContents, checkLengths } from './checkContents.js';
import { checkWhole, shown } from './checkInput.js';
import { readContents, type SequenceContents } from './contents.js';
import { checkTensorNames, contentsFrom, parseCache } from './format.js';
import { cacheIdentity, checkSameIdentity } from './identity.js';
import { totalTokens } from './lengths.js';
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
  const contents = sequences.map((lengths, sequence) => {
    const prefix = `cache file, sequence ${sequence}, `;
    checkLengths(layout, capacity.tokens, lengths, { prefix, hint: moreRoom, code: 'does-not-fit' });
    checkPromptTokens(lengths, prefix, 'Save the cache again.');
    const held = contentsFrom(parsed, layout, sequence);
    checkContents(geometry, held, { prefix, hint: 'Save the cache again.' });
    return held;
  });
  checkTensorNames(parsed, layout);
  return contents;
}

/** Sinks and the middle are of the prompt, the stream is not, and crop takes from the prompt what it takes from them. */
function checkPromptTokens(lengths: SequenceLengths, prefix: string, hint: string): void {
  checkWhole(lengths.promptTokens, {
    at: `${prefix}lengths.promptTokens`,
    least: lengths.sinkTokens + lengths.middleTokens,
    most: totalTokens(lengths),
    bounds: 'sinks and middle, and what the sequence holds',
    hint,
    code: 'invalid-input',
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
  checkPromptTokens(lengths, '', lengthHint());
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
