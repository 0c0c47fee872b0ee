export { allocateBits } from './allocateBits.js';
export type {
  AllocatedBits,
  FieldBits,
  GainCodec,
  LowRankCodec,
  NormalizeCodec,
  OutlierCodec,
  PolarCodec,
  QjlCodec,
  Quantizer,
  RotaryCodec,
  ScalarCodec,
  ScaleBlock,
  TileRotation,
  TransformCode,
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
export { polar } from './codecs/polar.js';
export { qjl } from './codecs/qjl.js';
export { perChannel, perHead, perToken } from './codecs/quantize.js';
export { gain, type TransformCodeParams, tileRotation, transformCode } from './codecs/transformCode.js';
export { asymmetric, midRise, symmetric, type UniformParams } from './codecs/uniform.js';
export { uniformNormal } from './codecs/uniformNormal.js';
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
export type { LatentGeometry } from './latentGeometry.js';
export { type FamilyOf, type LayerChoice, type MixParts, mix } from './mix.js';
export {
  frequenciesFor,
  type LatentShape,
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
  type LatentChain,
  type LatentScheme,
  type LowRankScheme,
  type RotaryChain,
  type ScalarChain,
  type ScalarScheme,
  type ScalarValues,
  type Scheme,
  type TiltKeys,
  type TiltScheme,
  type TiltValues,
  type ValueChain,
} from './scheme.js';
export * from './schemes/index.js';
export { defineStage, fasterBeyond, oneOf, type Stage, type Target, type Tunable } from './stage.js';
export type { TiltGeometry } from './tiltGeometry.js';
