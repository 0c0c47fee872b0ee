import type { PartName } from '../../codegen/plan/layout.js';

/** Elements of every part, by the names of safetensors; fields that straddle words are U32. */
export const partTypes = {
  sinkKeys: 'F16',
  sinkValues: 'F16',
  windowKeys: 'F16',
  windowValues: 'F16',
  keyCodes: 'U32',
  keyScales: 'F16',
  keyBasis: 'I8',
  keyBasisScales: 'F16',
  keyMean: 'F16',
  valueCodes: 'U8',
  codebook: 'F16',
  channelMax: 'F16',
  streamKeyCodes: 'U32',
  streamKeyNorms: 'F16',
  streamValueCodes: 'U32',
  streamValueNorms: 'F16',
  keyWidths: 'U32',
  keyWeights: 'F16',
} as const satisfies Readonly<Record<PartName, string>>;
