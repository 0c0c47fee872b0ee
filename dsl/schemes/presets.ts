import type { Scheme } from '../scheme.js';

/** Every preset by the name that commands take, loaded when it is asked for. */
export const presets: Readonly<Record<string, () => Promise<Scheme>>> = {
  shard: async () => (await import('./shard.js')).shard,
  'shard-plus': async () => (await import('./shardPlus.js')).shardPlus,
  'tilt-fast': async () => (await import('./tilt.js')).tiltFast,
  'tilt-safe': async () => (await import('./tilt.js')).tiltSafe,
  kivi2: async () => (await import('./kivi.js')).kivi2,
  kivi4: async () => (await import('./kivi.js')).kivi4,
  'kivi-k4v2': async () => (await import('./asymKv.js')).kiviK4V2,
  kvquant2: async () => (await import('./kvquant.js')).kvquant2,
  kvquant3: async () => (await import('./kvquant.js')).kvquant3,
  kvquant4: async () => (await import('./kvquant.js')).kvquant4,
  polarquant3: async () => (await import('./polarquant.js')).polarQuant3,
  polarquant4: async () => (await import('./polarquant.js')).polarQuant4,
  turboquant2: async () => (await import('./turboquant.js')).turboQuant2,
  turboquant3: async () => (await import('./turboquant.js')).turboQuant3,
  turboquant4: async () => (await import('./turboquant.js')).turboQuant4,
  'turboquant-prod4': async () => (await import('./turboquantProd.js')).turboQuantProd4,
  'turboquant-k8v4': async () => (await import('./turboquant.js')).turboQuantK8V4,
  int8: async () => (await import('./integer.js')).int8,
  int4: async () => (await import('./integer.js')).int4,
  int2: async () => (await import('./integer.js')).int2,
  'int4-hadamard': async () => (await import('./integer.js')).int4Hadamard,
  'int2-hadamard': async () => (await import('./integer.js')).int2Hadamard,
  nf4: async () => (await import('./nf4.js')).normalFloat4,
  'fp8-e4m3': async () => (await import('./fp8.js')).fp8E4M3,
  'fp8-e5m2': async () => (await import('./fp8.js')).fp8E5M2,
  'latent-int8': async () => (await import('./latent.js')).latentInt8,
  'latent-fp8': async () => (await import('./latent.js')).latentFp8,
  'latent-int4-hadamard': async () => (await import('./latent.js')).latentInt4Hadamard,
};

export const schemeNames = Object.keys(presets);
/** Those that code keys and values, which most models have: a model with latents takes the others. */
export const keyValueSchemeNames = schemeNames.filter((name) => !name.startsWith('latent-'));
