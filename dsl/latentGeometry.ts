import type { CacheGeometry, ScalarGroups } from './geometry.js';
import type { LatentShape, ModelShape } from './model.js';
import type { LatentChain, LatentScheme } from './scheme.js';

/** Sizes of a scheme that codes latents. Of the sizes of heads, `headDim` and `width` are those of a token: latent and rotary part. */
export interface LatentGeometry extends CacheGeometry {
  readonly family: 'latent';
  readonly scheme: LatentScheme;
  /** Channels of the latent, which come first in a token. */
  readonly latentDim: number;
  /** Channels of the rotary part. */
  readonly rotaryDim: number;
  readonly latent: ScalarGroups;
  /** Left out where the rotary part is kept in f16, in the middle and in the stream. */
  readonly rotary?: ScalarGroups;
  /** Query heads that a block takes: a divisor of their number. */
  readonly headsPerBlock: number;
  /** Words of the stream's codes of a latent, and of a rotary part. */
  readonly streamLatentWords: number;
  readonly streamRotaryWords: number;
}

/** More heads decode a token less often; a block of 16 has its queries and a tile of tokens in shared memory. */
const mostHeadsPerBlock = 16;

type Refuse = (at: string, expected: string, received: string | number, hint: string) => never;

/** The sizes of the part of a token that has so many channels, by the rules of any vector that is coded channel by channel. */
type PartGroups = (chain: LatentChain, at: 'latent' | 'rotary', channels: number) => ScalarGroups;

/**
 * The latent family's own sizes.
 *
 * @throws KvforgeError `invalid-scheme` for a model without latents, or with sizes that there is no schedule for
 */
export function latentSizes(
  scheme: LatentScheme,
  { name, latent, heads, kvHeads, headDim, width, groupSize }: ModelShape,
  groupsOf: PartGroups,
  refuse: Refuse,
): Omit<LatentGeometry, Exclude<keyof CacheGeometry, 'scheme' | 'weighted' | 'keyRowWords' | 'valueRowWords'>> {
  const { latentDim, rotaryDim } = latent ?? refuseModel(name, refuse);
  const hint = 'Let modelFrom(config) or presetModel(name) make the model.';
  for (const [at, size, most] of [
    ['latentDim', latentDim, 512],
    ['rotaryDim', rotaryDim, 128],
  ] as const) {
    const fits = Number.isInteger(size) && size > 0 && size <= most && size % 16 === 0;
    if (!fits)
      refuse(`model.latent.${at}`, `a multiple of 16, at most ${most}`, size, 'Other sizes have no schedule yet.');
  }
  const row = latentDim + rotaryDim;
  if (headDim !== row) refuse('model.headDim', `${row} (latent ${latentDim}, rotary part ${rotaryDim})`, headDim, hint);
  if (width !== row) refuse('model.width', `${row}, as all heads share a token`, width, hint);
  if (kvHeads !== 1) refuse('model.kvHeads', '1, as all heads share a token', kvHeads, hint);
  if (!(Number.isSafeInteger(heads) && heads > 0)) refuse('model.heads', 'a whole number of at least 1', heads, hint);
  if (groupSize !== heads) refuse('model.groupSize', `${heads}, as all heads share a token`, groupSize, hint);
  const latents = groupsOf(scheme.latent, 'latent', latentDim);
  const rotary = scheme.rotary === 'exact' ? undefined : groupsOf(scheme.rotary, 'rotary', rotaryDim);
  const rotaryWords = rotary?.headWords ?? rotaryDim / 2;
  const streamed = (channels: number) => Math.ceil((channels * scheme.stream.bits) / 32);
  return {
    family: 'latent',
    scheme,
    latentDim,
    rotaryDim,
    latent: latents,
    ...(rotary ? { rotary } : {}),
    headsPerBlock: largestDivisor(heads, mostHeadsPerBlock),
    streamLatentWords: streamed(latentDim),
    streamRotaryWords: rotary ? streamed(rotaryDim) : rotaryDim / 2,
    weighted: false,
    keyRowWords: latents.headWords + rotaryWords,
    valueRowWords: 0,
  };
}

function refuseModel(name: string, refuse: Refuse): LatentShape {
  const expected = 'multi-head latent attention, as the scheme codes latents';
  return refuse('model.latent', expected, `none in ${name}`, 'Take a scheme with keys and values, such as int8.');
}

function largestDivisor(count: number, most: number): number {
  let divisor = Math.min(count, most);
  while (count % divisor !== 0) divisor--;
  return divisor;
}
