import type { ScalarCodec } from '../codec.js';
import { float8 } from '../codecs/float8.js';
import { hadamard } from '../codecs/hadamard.js';
import { perToken } from '../codecs/quantize.js';
import { asymmetric, symmetric } from '../codecs/uniform.js';
import { defineScheme, type LatentChain, type RotaryChain } from '../scheme.js';

const latents = (name: string, latent: LatentChain, rotary: RotaryChain, stream: ScalarCodec) =>
  defineScheme({ name, latent, rotary, sinks: 4, window: 64, stream });

const whole = symmetric({ bits: 8 });
const rotary = [perToken(whole)] as const;
const tiles = { channels: 128 } as const;

/** Latents in whole numbers of 8 bits with a scale for each 128 of them, the rotary part with one for itself. */
export const latentInt8 = latents('latent-int8', [perToken(whole, tiles)], rotary, whole);
const e4m3 = float8({ format: 'e4m3' });
/** Latents in FP8 with a scale for each 128 of them, the rotary part in 16 bits: as DeepSeek's FlashMLA keeps its FP8 cache. */
export const latentFp8 = latents('latent-fp8', [perToken(e4m3, tiles)], 'exact', e4m3);
const int4 = asymmetric({ bits: 4 });
/** Latents in 4 bits between the least and the greatest of each 128, after the Hadamard transform, as QuaRot codes values. */
export const latentInt4Hadamard = latents('latent-int4-hadamard', [hadamard(), perToken(int4, tiles)], rotary, whole);
