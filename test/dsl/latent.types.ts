import { defineScheme, hadamard, int8, latentInt8, perToken, symmetric, unrope } from '../../dsl/index.js';

/** What the editor refuses of a scheme of latents; checked by the compiler, never run. */
export function refused(): void {
  const codec = symmetric({ bits: 8 });
  // @ts-expect-error keys and values beside latents
  defineScheme({ ...int8, latent: [perToken(codec)], rotary: 'exact' });
  // @ts-expect-error keys beside latents
  defineScheme({ ...latentInt8, keys: int8.keys });
  // @ts-expect-error latents have no RoPE to take off
  defineScheme({ ...latentInt8, latent: [unrope(), perToken(codec)] });
  // @ts-expect-error a rotary part is not turned
  defineScheme({ ...latentInt8, rotary: [hadamard(), perToken(codec)] });
  // @ts-expect-error a codec where a quantizer is due
  defineScheme({ ...latentInt8, latent: [codec] });
}
