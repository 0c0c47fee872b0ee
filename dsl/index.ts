export { allocateBits } from './allocateBits.js';
export type {
  AllocatedBits,
  FieldBits,
  LowRankCodec,
  NormalizeCodec,
  RotaryCodec,
  ScalarCodec,
  TransformCodec,
  VectorQuantizer,
} from './codec.js';
export { defineCodec } from './codec.js';
export { channelMax } from './codecs/channelMax.js';
export { hadamard } from './codecs/hadamard.js';
export { lloydMax, lloydMaxLevels } from './codecs/lloydMax.js';
export { type PcaParams, pca, type Rank } from './codecs/pca.js';
export { unrope } from './codecs/unrope.js';
export { type VqParams, vq } from './codecs/vq.js';
export * from './device.js';
export { type ErrorCode, type ErrorParts, KvforgeError } from './errors.js';
export { type Geometry, geometryOf, type KeyGroup } from './geometry.js';
export type { HeadGeometry } from './headGeometry.js';
export {
  frequenciesFor,
  type LayerShape,
  layerShape,
  type ModelShape,
  modelFrom,
  presetModel,
  presetNames,
  type RopeScaling,
  type RopeShape,
} from './model.js';
export { ropeTables } from './rope.js';
export { defineScheme, type KeyChain, type Scheme, type ValueChain } from './scheme.js';
export { shard } from './schemes/shard.js';
export { shardPlus } from './schemes/shardPlus.js';
export { defineStage, fasterBeyond, oneOf, type Stage, type Target, type Tunable } from './stage.js';
