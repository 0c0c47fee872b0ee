/** The judge of every kernel: naive loops in float64, sharing no code with codecs, stages or templates. */
export * from './attention.js';
export * from './basis.js';
export * from './bits.js';
export * from './fields.js';
export * from './hadamard.js';
export * from './identity.js';
export * from './lloydMax.js';
export * from './normal.js';
export * from './quantize.js';
export * from './random.js';
export * from './rope.js';
export * from './secondMoment.js';
export * from './shapes.js';
export * from './shard.js';
export * from './shardEncode.js';
export * from './vectorQuantization.js';
