import { KvforgeError } from '../../dsl/errors.js';
import { shown } from './checkInput.js';
import type { CacheMemory } from './memory.js';

type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };

/** Whose codes a cache holds, and what they stand for: two caches may exchange them when all of this is the same. */
export interface CacheIdentity {
  readonly scheme: Json;
  readonly model: Json;
  readonly layer: Json;
}

/** Of a cache with these kernels and this layer. */
export function cacheIdentity({ geometry: g, capacity, layer, frequencies }: CacheMemory): CacheIdentity {
  const { scheme, model } = g;
  const [rotary, basis] = scheme.keys;
  const { rope, slidingWindow = 0 } = layer;
  const identity: CacheIdentity = {
    scheme: {
      name: scheme.name,
      keys: {
        codecs: [rotary.name, basis.name],
        rank: g.rank,
        bits: g.allocatedGroups > 0 ? 'allocated' : g.keyGroups.map(({ components, bits }) => [components, bits]),
        rowWords: g.keyRowWords,
        weighted: g.weighted,
      },
      values: { codecs: scheme.values.map(({ name }) => name), channels: g.channels, entries: g.entries },
      sinks: scheme.sinks,
      window: scheme.window,
      stream: { codec: scheme.stream.name, bits: g.streamBits, levels: scheme.stream.levels(g.headDim) },
    },
    model: { name: model.name, heads: g.heads, kvHeads: g.kvHeads, headDim: g.headDim },
    layer: {
      index: capacity.layer,
      slidingWindow,
      rope: { pairing: rope.pairing, rotaryDim: rope.rotaryDim, frequencies },
    },
  };
  // As a file gives it back: a negative zero, for one, comes out as zero.
  return JSON.parse(JSON.stringify(identity)) as CacheIdentity;
}

/** @throws KvforgeError `invalid-input` with the first thing that differs */
export function checkSameIdentity(own: CacheIdentity, other: unknown, prefix: string): void {
  const difference = firstDifference({ ...own }, other, '');
  if (!difference) return;
  throw new KvforgeError('invalid-input', {
    at: `${prefix}${difference.at === '' ? 'identity' : difference.at}`,
    expected: `${difference.own} (of this cache)`,
    received: difference.other,
    hint: 'Load it into a cache with the scheme, the model and the layer that it was saved with.',
  });
}

interface Difference {
  readonly at: string;
  readonly own: string;
  readonly other: string;
}

function firstDifference(own: Json, other: unknown, at: string): Difference | undefined {
  if (typeof own !== 'object' || own === null || typeof other !== 'object' || other === null) {
    // Lists and records are shown by what they are: a whole table of levels would hide what differs.
    return Object.is(own, other) ? undefined : { at, own: shown(own), other: shown(other) };
  }
  const [mine, theirs] = [Object.entries(own), Object.entries(other)];
  if (mine.length !== theirs.length) return { at, own: `${mine.length} entries`, other: `${theirs.length}` };
  for (const [name, value] of mine) {
    const place = Array.isArray(own) ? `${at}[${name}]` : at === '' ? name : `${at}.${name}`;
    const found = firstDifference(value, (other as Record<string, unknown>)[name], place);
    if (found) return found;
  }
  return undefined;
}
