export { defaultTargets, type GeneratedKernels, generate, manifestText, type TunableChoice } from './generate.js';
export { type Fp16Kernels, type Fp16Manifest, generateFp16 } from './generateFp16.js';
export { lowerFiles, lowerText } from './lower/lower.js';
export type { KernelDescriptor, Manifest } from './manifest.js';
export { halfPrecisionBytes, layoutSequence, recordBytes, type SequenceLayout, splitPrompt } from './plan/layout.js';
