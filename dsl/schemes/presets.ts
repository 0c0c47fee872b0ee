import type { Scheme } from '../scheme.js';

/** Every preset by the name that commands take, loaded when it is asked for. */
export const presets: Readonly<Record<string, () => Promise<Scheme>>> = {
  shard: async () => (await import('./shard.js')).shard,
  'shard-plus': async () => (await import('./shardPlus.js')).shardPlus,
  kivi2: async () => (await import('./kivi.js')).kivi2,
  kivi4: async () => (await import('./kivi.js')).kivi4,
  kvquant2: async () => (await import('./kvquant.js')).kvquant2,
  kvquant3: async () => (await import('./kvquant.js')).kvquant3,
  kvquant4: async () => (await import('./kvquant.js')).kvquant4,
  turboquant2: async () => (await import('./turboquant.js')).turboQuant2,
  turboquant3: async () => (await import('./turboquant.js')).turboQuant3,
  turboquant4: async () => (await import('./turboquant.js')).turboQuant4,
  'turboquant-k8v4': async () => (await import('./turboquant.js')).turboQuantK8V4,
  int8: async () => (await import('./integer.js')).int8,
  int4: async () => (await import('./integer.js')).int4,
  int2: async () => (await import('./integer.js')).int2,
  'int4-hadamard': async () => (await import('./integer.js')).int4Hadamard,
  'int2-hadamard': async () => (await import('./integer.js')).int2Hadamard,
  nf4: async () => (await import('./nf4.js')).normalFloat4,
  'fp8-e4m3': async () => (await import('./fp8.js')).fp8E4M3,
  'fp8-e5m2': async () => (await import('./fp8.js')).fp8E5M2,
};

export const schemeNames = Object.keys(presets);
