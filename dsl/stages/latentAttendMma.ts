import type { ScalarGroups } from '../geometry.js';
import type { LatentGeometry } from '../latentGeometry.js';
import { levelsOf } from '../levels.js';
import type { KernelPlan } from '../stage.js';

/** Codes that a few instructions make halves of, exactly: `value = step * half + base`. */
interface HalfCodes {
  /** By how many bits an 8-bit float is widened; 0 for whole numbers, whose half is the code less half of all codes. */
  readonly shift: number;
  readonly step: number;
  readonly base: number;
}

/** What the half with these bits stands for, of those that are finite. */
function halfOf(bits: number): number {
  const [exponent, mantissa] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
  return bits >= 0x8000 ? -size : size;
}

/** How codes become halves; undefined where each would have to be looked up. */
function halfCodes({ codec, levelChannels, bits }: ScalarGroups): HalfCodes | undefined {
  const levels = levelsOf(codec, levelChannels);
  const values = Array.from({ length: 2 ** bits }, (_, code) =>
    Math.fround(codec.device.value(code, (i: number) => levels[i]!)),
  );
  if (bits !== 4 && bits !== 8) return undefined;
  const widened = (shift: number) => (code: number) => halfOf(((code & 127) << shift) | ((code & 128) << 8));
  const whole = (code: number) => code - values.length / 2;
  // Bytes of e5m2 are no halves: those that no number is coded to stand for finite ones, and their halves for none.
  for (const shift of bits === 8 ? [0, 7] : [0]) {
    const half = shift === 0 ? whole : widened(shift);
    const [first, last] = shift === 0 ? [0, values.length - 1] : [1, 2];
    const step = (values[last]! - values[first]!) / (half(last) - half(first));
    const base = values[first]! - step * half(first);
    const largest = Math.max(...values.map(Math.abs));
    const off = values.map((value, code) => Math.abs(step * half(code) + base - value));
    if (step > 0 && off.every((error) => error <= largest * 2 ** -22)) {
      // What is zero but for rounding would cost every token an addition.
      return { shift, step, base: Math.abs(base) <= largest * 2 ** -22 ? 0 : base };
    }
  }
  return undefined;
}

const exact: HalfCodes = { shift: 0, step: 1, base: 0 };
/** Tokens of the stream that are decoded together. */
const streamColumns = 4;

/** Why a scheme's latents cannot be taken as operands of products; undefined if they can. */
export function unfitForProducts({ latent, rotary, latentDim, rotaryDim }: LatentGeometry): string | undefined {
  if (latentDim % 64 !== 0) return `a warp takes 64 channels of a latent, which has ${latentDim}`;
  if (rotaryDim % 32 !== 0) return `products take 32 channels of a rotary part at a time, which has ${rotaryDim}`;
  if (latent.scaleChannels % 64 !== 0) return `a scale is for ${latent.scaleChannels} channels, a warp takes 64`;
  if (rotary && rotary.scaleChannels !== rotaryDim) return 'products take one scale of a rotary part';
  if (!halfCodes(latent)) return `codes of ${latent.codec.name} are no halves`;
  if (rotary && !halfCodes(rotary)) return `codes of ${rotary.codec.name} are no halves`;
  return undefined;
}

/** Products of codes, as halves, with queries and weights; for a scheme that fits. */
export function latentProducts(
  g: LatentGeometry,
  tileTokens: number,
): Pick<KernelPlan, 'threads' | 'blocksPerMultiprocessor' | 'constants' | 'sharedBytes' | 'template'> {
  const { latent, rotary, latentDim, headDim, headsPerBlock } = g;
  const rows = Math.ceil(headsPerBlock / 16) * 16;
  const runs = latentDim / latent.scaleChannels + 1;
  const stride = headDim + 8;
  const warps = latentDim / 64;
  // Where there are scores of every warp, stream tokens are decoded before, and queries and outputs turned: the largest counts.
  const scores = Math.max(
    warps * rows * (tileTokens + 8),
    headDim * streamColumns,
    latent.turned ? latentDim * rows : 0,
  );
  const bytes = tileTokens * stride * 2 + (scores + runs * tileTokens * 2 + runs * rows + rows) * 4;
  const of = (name: 'LATENT' | 'ROTARY', groups: ScalarGroups) => {
    const { shift, step, base } = halfCodes(groups) ?? exact;
    return {
      [`${name}_BITS`]: groups.bits,
      [`${name}_FLOAT_SHIFT`]: shift,
      [`${name}_STEP`]: step,
      [`${name}_BASE`]: base,
    };
  };
  return {
    threads: latentDim / 2,
    blocksPerMultiprocessor: 2,
    constants: {
      TILE_TOKENS: tileTokens,
      SHARED_BYTES: bytes,
      ...of('LATENT', latent),
      ...(rotary ? of('ROTARY', rotary) : {}),
    },
    sharedBytes: { fixed: 0, dynamic: bytes },
    template: 'latent_attend_mma',
  };
}
