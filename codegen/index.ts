export { defaultTargets, type GeneratedKernels, generate, manifestText, type TunableChoice } from './generate.js';
export { lowerFiles, lowerText } from './lower/lower.js';
export type { KernelDescriptor, Manifest } from './manifest.js';
export { halfPrecisionBytes, layoutSequence, recordBytes, type SequenceLayout, splitPrompt } from './plan/layout.js';
