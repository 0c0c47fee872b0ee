/**
 * The standard library of device functions: plain TypeScript in Node, lowered by name to CUDA and WGSL.
 *
 * A device function is a top-level function whose first statement is the directive `'device'`. In Node its numbers are
 * float64 between calls of this library; everything here that returns an `f32` rounds to float32, as a device does.
 */
import { f16round, getFloat16, setFloat16 } from '@petamoriken/float16';

// The brands are optional, so that a plain number fits every scalar, and distinct, so that an f32 never fits a u32.
/** A 32-bit float. */
export type f32 = number & { readonly __scalar?: 'f32' };
/** A number representable as a half. Only stored and converted: arithmetic happens on `f32(x)`. */
export type f16 = number & { readonly __scalar?: 'f16' };
/** A signed 32-bit integer. */
export type i32 = number & { readonly __scalar?: 'i32' };
/** An unsigned 32-bit integer. Wrap what may leave its range: `u32(a - b)`, `u32(a << b)`, `uadd(a, b)`, `umul(a, b)`. */
export type u32 = number & { readonly __scalar?: 'u32' };
export type bool = boolean;

/** A parameter known when a kernel is generated. It may bound a loop or be an array length: `FixedArray<f32, typeof n>`. */
export type Static<T extends u32 | i32> = T & { readonly __static?: true };

/** A mutable array of fixed length, passed by reference. Elements are read as `x[i]!`. */
export interface FixedArray<T, N extends number> {
  [index: number]: T;
  readonly length: N;
}

/** A table the schedule supplies (registers, shared memory or a buffer), read as `levels(i)`. */
export type Lookup<T> = (index: u32) => T;

export interface vec2f {
  readonly x: f32;
  readonly y: f32;
}
export interface vec3f extends vec2f {
  readonly z: f32;
}
export interface vec4f extends vec3f {
  readonly w: f32;
}
export interface vec2i {
  readonly x: i32;
  readonly y: i32;
}
export interface vec3i extends vec2i {
  readonly z: i32;
}
export interface vec4i extends vec3i {
  readonly w: i32;
}
export interface vec2u {
  readonly x: u32;
  readonly y: u32;
}
export interface vec3u extends vec2u {
  readonly z: u32;
}
export interface vec4u extends vec3u {
  readonly w: u32;
}

/** The elements `zeros` can make, by name. */
export interface Elements {
  f32: f32;
  f16: f16;
  i32: i32;
  u32: u32;
  vec2f: vec2f;
  vec4f: vec4f;
  vec2u: vec2u;
  vec4u: vec4u;
}

const scratch = new DataView(new ArrayBuffer(4));

/** Rounds to float32. `f32(0.1) === 0.10000000149011612` */
export function f32(x: number): f32 {
  return Math.fround(x);
}

/** Rounds to the nearest half, ties to even; beyond 65504 infinite. `f16(0.1) === 0.0999755859375` */
export function f16(x: number): f16 {
  return f16round(x);
}

/** Truncates a float in [-2^31, 2^31); reinterprets a u32. `i32(-1.5) === -1`, `i32(4294967295) === -1` */
export function i32(x: number | boolean): i32 {
  return Number(x) | 0;
}

/** Truncates a float in [0, 2^32); wraps an integer. `u32(7 / 2) === 3`, `u32(-1) === 4294967295` */
export function u32(x: number | boolean): u32 {
  return Number(x) >>> 0;
}

/** Two floats, each rounded to float32. `vec2f(0.5, 1)` is `{ x: 0.5, y: 1 }` */
export function vec2f(x: f32, y: f32): vec2f {
  return { x: f32(x), y: f32(y) };
}

/** Three floats, each rounded to float32. `vec3f(0.5, 1, 2)` is `{ x: 0.5, y: 1, z: 2 }` */
export function vec3f(x: f32, y: f32, z: f32): vec3f {
  return { x: f32(x), y: f32(y), z: f32(z) };
}

/** Four floats, each rounded to float32. `vec4f(0.5, 1, 2, 4)` is `{ x: 0.5, y: 1, z: 2, w: 4 }` */
export function vec4f(x: f32, y: f32, z: f32, w: f32): vec4f {
  return { x: f32(x), y: f32(y), z: f32(z), w: f32(w) };
}

/** Two signed integers. `vec2i(-1, 2)` is `{ x: -1, y: 2 }` */
export function vec2i(x: i32, y: i32): vec2i {
  return { x: i32(x), y: i32(y) };
}

/** Three signed integers. `vec3i(-1, 2, 3)` is `{ x: -1, y: 2, z: 3 }` */
export function vec3i(x: i32, y: i32, z: i32): vec3i {
  return { x: i32(x), y: i32(y), z: i32(z) };
}

/** Four signed integers. `vec4i(-1, 2, 3, 4)` is `{ x: -1, y: 2, z: 3, w: 4 }` */
export function vec4i(x: i32, y: i32, z: i32, w: i32): vec4i {
  return { x: i32(x), y: i32(y), z: i32(z), w: i32(w) };
}

/** Two unsigned integers, each wrapped. `vec2u(-1, 2)` is `{ x: 4294967295, y: 2 }` */
export function vec2u(x: u32, y: u32): vec2u {
  return { x: u32(x), y: u32(y) };
}

/** Three unsigned integers, each wrapped. `vec3u(-1, 2, 3)` is `{ x: 4294967295, y: 2, z: 3 }` */
export function vec3u(x: u32, y: u32, z: u32): vec3u {
  return { x: u32(x), y: u32(y), z: u32(z) };
}

/** Four unsigned integers, each wrapped. `vec4u(-1, 2, 3, 4)` is `{ x: 4294967295, y: 2, z: 3, w: 4 }` */
export function vec4u(x: u32, y: u32, z: u32, w: u32): vec4u {
  return { x: u32(x), y: u32(y), z: u32(z), w: u32(w) };
}

/** Absolute value of a float or an i32 above -2^31. `abs(-2) === 2` */
export function abs<T extends number>(x: T): T {
  return Math.abs(x) as T;
}

/** The smaller of two of one type; neither may be NaN. `min(2, 3) === 2` */
export function min<T extends number>(a: T, b: T): T {
  return Math.min(a, b) as T;
}

/** The larger of two of one type; neither may be NaN. `max(2, 3) === 3` */
export function max<T extends number>(a: T, b: T): T {
  return Math.max(a, b) as T;
}

/** `x` held inside [low, high], where `low <= high`. `clamp(9, 0, 7) === 7` */
export function clamp<T extends number>(x: T, low: T, high: T): T {
  return Math.min(Math.max(x, low), high) as T;
}

/** The largest whole number at most `x`. `floor(-1.5) === -2` */
export function floor(x: f32): f32 {
  return Math.floor(f32(x));
}

/** The smallest whole number at least `x`. `ceil(1.5) === 2` */
export function ceil(x: f32): f32 {
  return Math.ceil(f32(x));
}

/** `x` without its fraction. `trunc(-1.5) === -1` */
export function trunc(x: f32): f32 {
  return Math.trunc(f32(x));
}

/** The nearest whole number, ties to even as WGSL `round` and CUDA `rintf`. `round(2.5) === 2` */
export function round(x: f32): f32 {
  const value = f32(x);
  const below = Math.floor(value);
  const fraction = value - below;
  if (fraction === 0.5) return below % 2 === 0 ? below : below + 1;
  return fraction < 0.5 ? below : below + 1;
}

/** Square root of `x >= 0`. `sqrt(9) === 3` */
export function sqrt(x: f32): f32 {
  return f32(Math.sqrt(f32(x)));
}

/** 1 / sqrt(x) of `x > 0`. `inverseSqrt(4) === 0.5` */
export function inverseSqrt(x: f32): f32 {
  return f32(1 / Math.sqrt(f32(x)));
}

/** e to the power `x`, infinite above 88.7. `exp(0) === 1` */
export function exp(x: f32): f32 {
  return f32(Math.exp(f32(x)));
}

/** 2 to the power `x`, infinite from 128. `exp2(3) === 8` */
export function exp2(x: f32): f32 {
  return f32(2 ** f32(x));
}

/** Natural logarithm of `x > 0`. `log(1) === 0` */
export function log(x: f32): f32 {
  return f32(Math.log(f32(x)));
}

/** Base-2 logarithm of `x > 0`. `log2(8) === 3` */
export function log2(x: f32): f32 {
  return f32(Math.log2(f32(x)));
}

/** Sine of radians; devices are exact to 2^-11 only within [-pi, pi]. `sin(0) === 0` */
export function sin(x: f32): f32 {
  return f32(Math.sin(f32(x)));
}

/** Cosine of radians; devices are exact to 2^-11 only within [-pi, pi]. `cos(0) === 1` */
export function cos(x: f32): f32 {
  return f32(Math.cos(f32(x)));
}

/** `a * b + c`, rounded once on CUDA and once or twice on WebGPU. `fma(2, 3, 1) === 7` */
export function fma(a: f32, b: f32, c: f32): f32 {
  return f32(f32(a) * f32(b) + f32(c));
}

/** The IEEE bits of a float32. `bitsOf(1) === 0x3f800000` */
export function bitsOf(x: f32): u32 {
  scratch.setFloat32(0, x);
  return scratch.getUint32(0);
}

/** The float32 with these bits, which must not be a NaN or an infinity on WebGPU. `fromBits(0x3f800000) === 1` */
export function fromBits(bits: u32): f32 {
  scratch.setUint32(0, bits);
  return scratch.getFloat32(0);
}

/** Neither infinite nor NaN, decided on the bits so that fast-math cannot drop it. `isFiniteBits(1 / 0) === false` */
export function isFiniteBits(x: f32): bool {
  return (bitsOf(x) & 0x7f800000) !== 0x7f800000;
}

/** Product modulo 2^32. `umul(0x10000, 0x10001) === 0x10000` */
export function umul(a: u32, b: u32): u32 {
  return Math.imul(a, b) >>> 0;
}

/** Sum modulo 2^32. `uadd(4294967295, 2) === 1` */
export function uadd(a: u32, b: u32): u32 {
  return (a + b) >>> 0;
}

/** How many bits are set. `countOneBits(7) === 3` */
export function countOneBits(x: u32): u32 {
  let count = 0;
  for (let rest = x >>> 0; rest !== 0; rest = (rest & (rest - 1)) >>> 0) count++;
  return count;
}

/** Two finite floats rounded to halves in one word, `low` in the low 16 bits. `packHalf2(1, 2) === 0x40003c00` */
export function packHalf2(low: f32, high: f32): u32 {
  setFloat16(scratch, 0, high);
  setFloat16(scratch, 2, low);
  return scratch.getUint32(0);
}

/** The two halves of a word, `x` from the low 16 bits. `unpackHalf2(0x40003c00)` is `vec2f(1, 2)` */
export function unpackHalf2(word: u32): vec2f {
  scratch.setUint32(0, word);
  return { x: getFloat16(scratch, 2), y: getFloat16(scratch, 0) };
}

type FloatVector = vec2f | vec3f | vec4f;
const axes = ['x', 'y', 'z', 'w'] as const;
type Components = { [axis in 'x' | 'y' | 'z' | 'w']?: number };

function combine<V extends FloatVector>(a: V, b: V, rule: (a: number, b: number) => number): V {
  const result: Components = {};
  for (const axis of axes) {
    const left = (a as Components)[axis];
    const right = (b as Components)[axis];
    if (left !== undefined && right !== undefined) result[axis] = f32(rule(left, right));
  }
  return result as V;
}

/** Sum of the products of the components. `dot(vec2f(1, 2), vec2f(3, 4)) === 11` */
export function dot<V extends FloatVector>(a: V, b: V): f32 {
  const products = combine(a, b, (left, right) => left * right) as Components;
  return f32((products.x ?? 0) + (products.y ?? 0) + (products.z ?? 0) + (products.w ?? 0));
}

/** Sum by component. `vectorAdd(vec2f(1, 2), vec2f(3, 4))` is `vec2f(4, 6)` */
export function vectorAdd<V extends FloatVector>(a: V, b: V): V {
  return combine(a, b, (left, right) => left + right);
}

/** Difference by component. `vectorSubtract(vec2f(1, 2), vec2f(3, 5))` is `vec2f(-2, -3)` */
export function vectorSubtract<V extends FloatVector>(a: V, b: V): V {
  return combine(a, b, (left, right) => left - right);
}

/** Product by component. `vectorMultiply(vec2f(1, 2), vec2f(3, 4))` is `vec2f(3, 8)` */
export function vectorMultiply<V extends FloatVector>(a: V, b: V): V {
  return combine(a, b, (left, right) => left * right);
}

/** Every component times one number. `vectorScale(vec2f(1, 2), 3)` is `vec2f(3, 6)` */
export function vectorScale<V extends FloatVector>(a: V, factor: f32): V {
  return combine(a, a, (component) => component * factor);
}

function zeroOf(kind: keyof Elements): vec2f | vec4f {
  return kind.startsWith('vec2') ? vec2f(0, 0) : vec4f(0, 0, 0, 0);
}

/** An array of `length` zeros; on a device it lives in registers. `zeros('f32', 8)[0] === 0` */
export function zeros<K extends keyof Elements, N extends number>(kind: K, length: N): FixedArray<Elements[K], N> {
  const make = (): unknown => {
    if (kind === 'f32' || kind === 'f16') return new Float32Array(length);
    if (kind === 'i32') return new Int32Array(length);
    if (kind === 'u32') return new Uint32Array(length);
    return new Array(length).fill(zeroOf(kind));
  };
  return make() as FixedArray<Elements[K], N>;
}
