import type { Quantizer, ScalarCodec } from '../codec.js';

type Trim = { trim?: number };
const trimmed = (trim: number | undefined): Pick<Quantizer, 'trim'> => (trim === undefined ? {} : { trim });

/**
 * A scale for every token and KV head, or for every so many channels of it.
 *
 * @example
 * perToken(lloydMax({ bits: 4 }))
 * perToken(asymmetric({ bits: 2 }), { channels: 32 })
 * perToken(nuq({ bits: 3 }), { trim: 0.01 })
 */
export function perToken(
  codec: ScalarCodec,
  { channels = 'head', trim }: { channels?: 16 | 32 | 64 | 128 | 'head' } & Trim = {},
): Quantizer {
  return { kind: 'quantizer', name: 'perToken', codec, block: { tokens: 1, channels }, ...trimmed(trim) };
}

/**
 * A scale for every channel of a KV head: over all compressed tokens of the prompt, or over every so many of them.
 *
 * @example
 * perChannel(asymmetric({ bits: 2 }), { tokens: 32 })
 * perChannel(symmetric({ bits: 4 }))
 * perChannel(nuq({ bits: 3 }), { tokens: 'prompt', trim: 0.005 })
 */
export function perChannel(
  codec: ScalarCodec,
  { tokens = 'prompt', trim }: { tokens?: 16 | 32 | 64 | 128 | 'prompt' } & Trim = {},
): Quantizer {
  return { kind: 'quantizer', name: 'perChannel', codec, block: { tokens, channels: 1 }, ...trimmed(trim) };
}

/**
 * One scale for a KV head, over all compressed tokens of the prompt. Not for `lloydMax`, whose scale is a norm and whose
 * levels are for a known number of numbers: `defineScheme` refuses it, as over a whole prompt by channel.
 *
 * @example
 * perHead(float8({ format: 'e4m3' }))
 */
export function perHead(codec: ScalarCodec): Quantizer {
  return { kind: 'quantizer', name: 'perHead', codec, block: { tokens: 'prompt', channels: 'head' } };
}
