export { allocateBits } from './allocateBits.js';
export type {
  AllocatedBits,
  FieldBits,
  LowRankCodec,
  NormalizeCodec,
  OutlierCodec,
  Quantizer,
  RotaryCodec,
  ScalarCodec,
  ScaleBlock,
  TransformCodec,
  VectorQuantizer,
} from './codec.js';
export { defineCodec } from './codec.js';
export { channelMax } from './codecs/channelMax.js';
export { type Float8Params, float8 } from './codecs/float8.js';
export { hadamard } from './codecs/hadamard.js';
export { type TableParams, table } from './codecs/levelTable.js';
export { lloydMax, lloydMaxLevels } from './codecs/lloydMax.js';
export { nf4 } from './codecs/nf4.js';
export { type NuqParams, nuq } from './codecs/nuq.js';
export { outliers } from './codecs/outliers.js';
export { type PcaParams, pca, type Rank } from './codecs/pca.js';
export { perChannel, perHead, perToken } from './codecs/quantize.js';
export { asymmetric, symmetric, type UniformParams } from './codecs/uniform.js';
export { unrope } from './codecs/unrope.js';
export { type VqParams, vq } from './codecs/vq.js';
export * from './device.js';
export { type ErrorCode, type ErrorParts, KvforgeError } from './errors.js';
export {
  type Geometry,
  type GeometryOf,
  geometryOf,
  type KeyGroup,
  type LowRankGeometry,
  type ScalarGeometry,
  type ScalarGroups,
} from './geometry.js';
export type { HeadGeometry } from './headGeometry.js';
export { type FamilyOf, type LayerChoice, type MixParts, mix } from './mix.js';
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
export {
  defineScheme,
  type KeyChain,
  type LowRankScheme,
  type ScalarChain,
  type ScalarScheme,
  type ScalarValues,
  type Scheme,
  type ValueChain,
} from './scheme.js';
export * from './schemes/index.js';
export { defineStage, fasterBeyond, oneOf, type Stage, type Target, type Tunable } from './stage.js';
