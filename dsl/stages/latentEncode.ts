import type { ScalarGroups } from '../geometry.js';
import type { LatentGeometry } from '../latentGeometry.js';
import { defineStage, type FunctionUse } from '../stage.js';
import { cacheWrite, reads, sequenceRecord, tables } from './bindings.js';

type NoTunables = Readonly<Record<never, never>>;

/** A token as it comes, and as it is kept where it is exact. */
const tokenOf = ({ latentDim, rotaryDim }: LatentGeometry) => `[${latentDim} latent, ${rotaryDim} rotary after RoPE]`;

/** The prompt's tokens, which are keys and values at once. */
function promptTokens(g: LatentGeometry) {
  return reads('keys', 'u32', `f16 [prompt tokens]${tokenOf(g)}`);
}

/** Copies the sinks and the window of a prompt of latents into the cache, as they are. */
export const latentExactStage = defineStage<NoTunables, LatentGeometry>({
  name: 'exact',
  summary: 'Copy sinks and window in f16.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => [
    {
      entry: 'copy_exact',
      summary: 'One word (two channels) of one exact token a thread; the window starts at slot 0.',
      bindings: [sequenceRecord, promptTokens(g), cacheWrite],
      threads: 128,
      grid: [Math.ceil(((g.scheme.sinks + g.scheme.window) * g.headDim) / 2 / 128), 1, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
      template: 'latent_exact',
    },
  ],
});

/** What codes a part of a token: `latentOffset`, `latentScale`, `latentCode`, `latentPack`, and of the rotary part. */
function codeFunctions(g: LatentGeometry): Record<string, FunctionUse> {
  const of = (name: 'latent' | 'rotary', { codec: { device }, bits }: ScalarGroups): Record<string, FunctionUse> => ({
    ...(device.offset ? { [`${name}Offset`]: { name: device.offset.name } } : {}),
    [`${name}Scale`]: { name: device.scale.name },
    [`${name}Code`]: { name: device.code.name, statics: { bits }, lookups: { levels: `${name}_level_at` } },
    [`${name}Pack`]: { name: 'packWord', statics: { bits }, lookups: { fields: `${name}_field_at` } },
  });
  return { ...of('latent', g.latent), ...(g.rotary ? of('rotary', g.rotary) : {}) };
}

/** The device functions that read what is coded: `latentUnpack`, `latentValue`, and of the rotary part and the stream. */
export function latentReadFunctions(g: LatentGeometry): Record<string, FunctionUse> {
  const of = (name: string, value: string, bits: number): Record<string, FunctionUse> => ({
    [`${name}Value`]: { name: value, lookups: { levels: `${name}_level_at` } },
    [`${name}Unpack`]: { name: 'unpackField', statics: { bits }, lookups: { words: `${name}_word_at` } },
  });
  const stream = g.scheme.stream.device.value.name;
  return {
    ...of('latent', g.latent.codec.device.value.name, g.latent.bits),
    ...of('streamed', stream, g.streamBits),
    ...(g.rotary
      ? {
          ...of('rotary', g.rotary.codec.device.value.name, g.rotary.bits),
          ...of('turned', stream, g.streamBits),
        }
      : {}),
  };
}

/** Blocks side by side; WebGPU has no more than 65535 of them in a row. */
const rowTokens = 256;

/** From the middle of a prompt to its codes and scales. */
export const latentCodesStage = defineStage<NoTunables, LatentGeometry>({
  name: 'codeLatents',
  summary: 'Turn the latents of the middle where they are to be, find scales, quantise and pack; rotary parts as well.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => [
    {
      entry: 'code_latents',
      summary: 'One token of the middle a block.',
      bindings: [sequenceRecord, promptTokens(g), tables, cacheWrite],
      threads: 128,
      grid: [rowTokens, { ceilDiv: [{ dimension: 'middleTokens' }, rowTokens] }, 1],
      constants: { TILE_TOKENS: rowTokens },
      functions: codeFunctions(g),
      // Every channel, and for every scale of a part itself and its offset.
      sharedBytes: { fixed: (g.headDim + 2 * scalesOf(g.latentDim, g.latent, g)) * 4, dynamic: 0 },
    },
  ],
});

/** Scales of the part that has more of them. */
function scalesOf(latentDim: number, latent: ScalarGroups, { rotary, rotaryDim }: LatentGeometry): number {
  return Math.max(latentDim / latent.scaleChannels, rotary ? rotaryDim / rotary.scaleChannels : 0);
}
