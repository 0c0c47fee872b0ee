import { KvforgeError } from './errors.js';
import {
  defineScheme,
  isLatent,
  isScalar,
  isTilt,
  type LowRankScheme,
  type ScalarScheme,
  type Scheme,
  type TiltScheme,
} from './scheme.js';

/** Every scheme of the family that `Keys` is of. */
export type FamilyOf<Keys extends Scheme> = Keys extends ScalarScheme
  ? ScalarScheme
  : Keys extends TiltScheme
    ? TiltScheme
    : LowRankScheme;

/** What a mix is made of: the keys of one scheme and the values of another. */
export interface MixParts<Keys extends Scheme> {
  /** As that of any scheme. */
  readonly name: string;
  readonly keys: Keys;
  readonly values: FamilyOf<Keys>;
}

/** The scheme of one layer, where layers differ. */
export interface LayerChoice {
  /** From 0. */
  readonly layer: number;
  readonly scheme: Scheme;
}

/**
 * Keys coded as one scheme codes them, values as another does. The result is a scheme as any other, with kernels of its
 * own.
 *
 * - Sinks and window are the larger of both: no token that one of them keeps exact is coded. For other ends, spread:
 *   `{ ...mix({...}), window: 32 }`.
 * - Generated tokens have one codec for keys and values: that of the schemes' streams with more bits, of `keys` where both
 *   have as many. Its bytes count for both.
 *
 * A cache has the stages of one family, so that schemes mix within theirs. Low-rank ones mix only with themselves, as their
 * stages are planned for keys and values together, and so do those of latents, which are both at once.
 *
 * @throws KvforgeError `invalid-scheme` for schemes that do not mix, and for what `defineScheme` refuses
 * @example
 * mix({ name: 'int8-int4', keys: int8, values: int4Hadamard }).stream.bits; // 8
 */
export function mix<Keys extends Scheme>({ name, keys, values }: MixParts<Keys>): FamilyOf<Keys> {
  return mixed(name, keys, values) as FamilyOf<Keys>;
}

/** Types do not reach everyone: families are told apart here too. */
function mixed(name: string, keys: Scheme, values: Scheme): Scheme {
  for (const part of [keys, values]) defineScheme(part);
  if (isTilt(keys) !== isTilt(values)) {
    const [at, tilt, other] = isTilt(keys) ? (['values', keys, values] as const) : (['keys', values, keys] as const);
    const expected = 'a scheme with tile-rotated keys, as these mix only with one another';
    const hint = `Take both from schemes such as ${tilt.name}.`;
    throw new KvforgeError('invalid-scheme', { at: `mix.${at}`, expected, received: other.name, hint });
  }
  if (isTilt(keys) && isTilt(values)) {
    return defineScheme({ name, keys: keys.keys, values: values.values, ...segmentsOf(keys, values) });
  }
  if (!isScalar(keys)) {
    if (keys !== values) throw unmixable('values', keys, values);
    return defineScheme({ ...keys, name });
  }
  if (!isScalar(values)) throw unmixable('keys', values, keys);
  return defineScheme({ name, keys: keys.keys, values: values.values, ...segmentsOf(keys, values) });
}

/** Ends and stream of a mix. */
function segmentsOf(keys: Scheme, values: Scheme): Pick<Scheme, 'sinks' | 'window' | 'stream'> {
  return {
    sinks: Math.max(keys.sinks, values.sinks),
    window: Math.max(keys.window, values.window),
    stream: values.stream.bits > keys.stream.bits ? values.stream : keys.stream,
  };
}

function unmixable(at: 'keys' | 'values', alone: Scheme, other: Scheme): KvforgeError {
  return new KvforgeError('invalid-scheme', {
    at: `mix.${at}`,
    expected: `${alone.name} itself, as ${isLatent(alone) ? 'schemes of latents' : 'low-rank schemes'} mix only with themselves`,
    received: other.name,
    hint: 'Take both from schemes that code every channel by itself.',
  });
}
