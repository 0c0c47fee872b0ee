export { fp8E4M3, fp8E5M2 } from './fp8.js';
export { int2, int2Hadamard, int4, int4Hadamard, int8 } from './integer.js';
export { kivi2, kivi4 } from './kivi.js';
export { kvquant2, kvquant3, kvquant4 } from './kvquant.js';
export { normalFloat4 } from './nf4.js';
export { shard } from './shard.js';
export { shardPlus } from './shardPlus.js';
export { turboQuant2, turboQuant3, turboQuant4, turboQuantK8V4 } from './turboquant.js';
