import { KvforgeError } from '../../dsl/errors.js';
import type { LowRankGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import { levelsOf } from '../../dsl/levels.js';
import type { RopeShape } from '../../dsl/model.js';
import type { LatentChain, ScalarChain, TiltValues } from '../../dsl/scheme.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { shown } from './checkInput.js';
import type { CacheMemory } from './memory.js';

type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };

/** What the codes of a cache stand for: two caches may exchange them when all of it but `about` is the same. */
export interface CacheIdentity {
  /** For people: one model may have come from a preset or from a file, under two names. */
  readonly about: {
    readonly scheme: string;
    readonly model: string;
    /** Of the capacity that the frequencies are for, where they depend on it. */
    readonly frequencyTokens?: number;
  };
  readonly scheme: Json;
  readonly model: Json;
  readonly layer: Json;
}

/**
 * Engines differ in the last digit of a power. These digits they share, except that one may round the last of them up
 * where another rounds it down.
 */
const sharedDigits = 13;
/** Relative; more than one unit of the last shared digit, less than two of 1.000000000000. */
const sharedPrecision = 1.5 * 10 ** (1 - sharedDigits);

/** Of a cache with these kernels and this layer. */
export function cacheIdentity({ geometry: g, capacity, layer, frequencies }: CacheMemory): CacheIdentity {
  const { scheme, model } = g;
  const { rope, slidingWindow = 0 } = layer;
  const identity: CacheIdentity = {
    about: {
      scheme: scheme.name,
      model: model.name,
      ...(frequenciesDepend(rope) ? { frequencyTokens: capacity.tokens } : {}),
    },
    scheme: {
      ...(g.family === 'tilt'
        ? tiltCodes(g)
        : g.family === 'latent'
          ? latentCodes(g)
          : g.family === 'low-rank'
            ? lowRankCodes(g)
            : { keys: scalarCode(g.scheme.keys, g.keys), values: scalarCode(g.scheme.values, g.values) }),
      sinks: scheme.sinks,
      window: scheme.window,
      stream: {
        codec: scheme.stream.name,
        bits: g.streamBits,
        levels: [...levelsOf(scheme.stream, g.family === 'latent' ? g.latentDim : g.headDim)],
      },
    },
    model: {
      heads: g.heads,
      kvHeads: g.kvHeads,
      headDim: g.headDim,
      ...(g.family === 'latent' ? { latentDim: g.latentDim } : {}),
    },
    layer: {
      index: capacity.layer,
      slidingWindow,
      rope: {
        pairing: rope.pairing,
        rotaryDim: rope.rotaryDim,
        frequencies: frequencies.map((frequency) => Number(frequency.toPrecision(sharedDigits))),
      },
    },
  };
  // As a file gives it back: a negative zero, for one, comes out as zero.
  return JSON.parse(JSON.stringify(identity)) as CacheIdentity;
}

function tiltCodes(g: TiltGeometry): { readonly keys: Json; readonly values: Json } {
  const { keys, values } = g.scheme;
  const { tile, rangeBlock, groupComponents, keyNibbles, gained } = g;
  return {
    keys: { codecs: keys.map(({ name }) => name), tile, rangeBlock, groupComponents, keyNibbles },
    values: { code: scalarCode(values, g.values), gained },
  };
}

function lowRankCodes(g: LowRankGeometry): { readonly keys: Json; readonly values: Json } {
  const { keys, values } = g.scheme;
  return {
    keys: {
      codecs: keys.map(({ name }) => name),
      rank: g.rank,
      bits: g.allocatedGroups > 0 ? 'allocated' : g.keyGroups.map(({ components, bits }) => [components, bits]),
      rowWords: g.keyRowWords,
      weighted: g.weighted,
    },
    values: { codecs: values.map(({ name }) => name), channels: g.channels, entries: g.entries },
  };
}

function latentCodes({ scheme, latent, rotary }: LatentGeometry): { readonly latent: Json; readonly rotary: Json } {
  return {
    latent: scalarCode(scheme.latent, latent),
    rotary: scheme.rotary === 'exact' ? scheme.rotary : scalarCode(scheme.rotary, rotary!),
  };
}

function scalarCode(
  chain: ScalarChain | LatentChain | TiltValues,
  { codec, levelChannels, outlierCap, projection, ...groups }: ScalarGroups,
): Json {
  return {
    codecs: [...chain.map(({ name }) => name), codec.name],
    bits: groups.bits,
    scaleTokens: groups.scaleTokens,
    scaleChannels: groups.scaleChannels,
    hasOffset: codec.device.offset !== undefined,
    ...(outlierCap > 0 ? { outlierCap } : {}),
    ...(projection.length > 0 ? { projection } : {}),
    levels: [...levelsOf(codec, levelChannels)],
  };
}

/** @throws KvforgeError `invalid-input` with the first thing that differs */
export function checkSameIdentity(own: CacheIdentity, other: unknown, prefix: string): void {
  const { about, ...meaning } = own;
  const { about: otherAbout, ...otherMeaning } = (other ?? {}) as Partial<CacheIdentity>;
  const difference = firstDifference(meaning, typeof other === 'object' && other !== null ? otherMeaning : other, '');
  if (!difference) return;
  const { frequencyTokens } = about;
  const otherTokens: unknown = otherAbout?.frequencyTokens;
  const byCapacity =
    difference.at.startsWith('layer.rope.frequencies[') &&
    Number.isInteger(otherTokens) &&
    frequencyTokens !== undefined &&
    frequencyTokens !== otherTokens;
  throw new KvforgeError('invalid-input', {
    at: `${prefix}${difference.at === '' ? 'identity' : difference.at}`,
    expected: `${difference.own} (of this cache${byCapacity ? `, for prompts of ${frequencyTokens} tokens` : ''})`,
    received: `${difference.other}${byCapacity ? ` (for prompts of ${otherTokens} tokens)` : ''}`,
    hint: byCapacity
      ? `The RoPE of this layer depends on the length: open the cache with tokens: ${otherTokens}.`
      : 'Load it into a cache with the scheme, the model and the layer that it was saved with.',
  });
}

/** Whether a cache of another capacity may have other frequencies. */
function frequenciesDepend({ scaling }: RopeShape): boolean {
  return scaling?.type === 'dynamic' || scaling?.type === 'longrope';
}

interface Difference {
  readonly at: string;
  readonly own: string;
  readonly other: string;
}

function firstDifference(own: Json, other: unknown, at: string): Difference | undefined {
  if (typeof own !== 'object' || own === null || typeof other !== 'object' || other === null) {
    // Lists and records are shown by what they are: a whole table of levels would hide what differs.
    return sameValue(own, other) ? undefined : { at, own: shown(own), other: shown(other) };
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

/** Counts are whole numbers, which one unit of the last shared digit does not bring together. */
function sameValue(own: Json, other: unknown): boolean {
  if (typeof own !== 'number' || typeof other !== 'number') return own === other;
  return Math.abs(own - other) <= sharedPrecision * Math.max(Math.abs(own), Math.abs(other));
}
