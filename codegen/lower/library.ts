/** How the functions of `dsl/device.ts` are typed: their parameters in terms of one type variable `T`. */
import type { IntrinsicName, ScalarName, ValueType, VectorName } from '../ir.js';

/** `T`: any of `generic`, the same everywhere in one call. */
type Slot = ValueType | 'T';
export interface Signature {
  readonly params: readonly Slot[];
  readonly returns: Slot;
  readonly generic?: readonly ValueType[];
}

const numbers: readonly ValueType[] = ['f32', 'i32', 'u32'];
const floatVectors: readonly ValueType[] = ['vec2f', 'vec3f', 'vec4f'];
const floatToFloat: Signature = { params: ['f32'], returns: 'f32' };
const pairOfVectors: Signature = { params: ['T', 'T'], returns: 'T', generic: floatVectors };

export const intrinsics: Readonly<Record<IntrinsicName, Signature>> = {
  abs: { params: ['T'], returns: 'T', generic: ['f32', 'i32'] },
  min: { params: ['T', 'T'], returns: 'T', generic: numbers },
  max: { params: ['T', 'T'], returns: 'T', generic: numbers },
  clamp: { params: ['T', 'T', 'T'], returns: 'T', generic: numbers },
  floor: floatToFloat,
  ceil: floatToFloat,
  trunc: floatToFloat,
  round: floatToFloat,
  sqrt: floatToFloat,
  inverseSqrt: floatToFloat,
  exp: floatToFloat,
  exp2: floatToFloat,
  log: floatToFloat,
  log2: floatToFloat,
  sin: floatToFloat,
  cos: floatToFloat,
  fma: { params: ['f32', 'f32', 'f32'], returns: 'f32' },
  bitsOf: { params: ['f32'], returns: 'u32' },
  fromBits: { params: ['u32'], returns: 'f32' },
  countOneBits: { params: ['u32'], returns: 'u32' },
  packHalf2: { params: ['f32', 'f32'], returns: 'u32' },
  unpackHalf2: { params: ['u32'], returns: 'vec2f' },
  dot: { params: ['T', 'T'], returns: 'f32', generic: floatVectors },
  vectorAdd: pairOfVectors,
  vectorSubtract: pairOfVectors,
  vectorMultiply: pairOfVectors,
  vectorScale: { params: ['T', 'f32'], returns: 'T', generic: floatVectors },
};

export function isIntrinsic(name: string): name is IntrinsicName {
  return Object.hasOwn(intrinsics, name);
}

/** Node gives these the same result whichever sign it holds a word with, so their arguments need no `u32(...)`. */
export const readsWords: ReadonlySet<string> = new Set(['fromBits', 'countOneBits', 'unpackHalf2']);

export const conversions: ReadonlySet<string> = new Set(['f32', 'f16', 'i32', 'u32']);

export const scalarNames: ReadonlySet<string> = new Set<ScalarName>(['f32', 'f16', 'i32', 'u32', 'bool']);
export const vectorNames: ReadonlySet<string> = new Set<VectorName>([
  'vec2f',
  'vec3f',
  'vec4f',
  'vec2i',
  'vec3i',
  'vec4i',
  'vec2u',
  'vec3u',
  'vec4u',
]);
export const zerosElements: ReadonlySet<string> = new Set([
  'f32',
  'f16',
  'i32',
  'u32',
  'vec2f',
  'vec4f',
  'vec2u',
  'vec4u',
]);

export function isScalarName(name: string): name is ScalarName {
  return scalarNames.has(name);
}
export function isVectorName(name: string): name is VectorName {
  return vectorNames.has(name);
}
