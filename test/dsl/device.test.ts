import fc from 'fast-check';
import { describe, expect, expectTypeOf, it } from 'vitest';
import type { FixedArray, f32, Lookup, Static, u32 } from '../../dsl/device.js';
import * as device from '../../dsl/device.js';

const words = fc.integer({ min: 0, max: 0xffffffff });
const floats = fc.float({ noNaN: true, noDefaultInfinity: true });

describe('conversions', () => {
  it.each([
    [device.f32(0.1), 0.10000000149011612],
    [device.f16(0.1), 0.0999755859375],
    [device.f16(65520), Number.POSITIVE_INFINITY],
    [device.i32(-1.5), -1],
    [device.i32(4294967295), -1],
    [device.i32(true), 1],
    [device.u32(7 / 2), 3],
    [device.u32(-1), 4294967295],
    [device.u32(false), 0],
  ])('%s is %s', (found, wanted) => expect(found).toBe(wanted));

  it('wraps words as a device does', () => {
    fc.assert(
      fc.property(words, words, (a, b) => {
        expect(device.uadd(a, b)).toBe(Number((BigInt(a) + BigInt(b)) % 4294967296n));
        expect(device.umul(a, b)).toBe(Number((BigInt(a) * BigInt(b)) % 4294967296n));
        expect(device.countOneBits(a)).toBe(a.toString(2).replaceAll('0', '').length);
      }),
    );
  });
});

describe('numbers', () => {
  it.each([
    [-2.5, -2],
    [-1.5, -2],
    [-0.5, 0],
    [0.5, 0],
    [1.5, 2],
    [2.5, 2],
    [2.4, 2],
    [2.6, 3],
    [-2.6, -3],
    [16777215, 16777215],
    [8388607.5, 8388608],
  ])('rounds %s to %s, ties to even', (x, wanted) => expect(device.round(x) + 0).toBe(wanted));

  it('returns float32 from every float function', () => {
    const functions = [device.sqrt, device.exp, device.exp2, device.sin, device.cos, device.floor, device.ceil];
    fc.assert(
      fc.property(floats, (x) => {
        for (const run of functions) expect(run(x)).toBe(Math.fround(run(x)));
        expect(device.fma(x, 2, 1)).toBe(Math.fround(x * 2 + 1));
      }),
    );
    expect(device.inverseSqrt(4)).toBe(0.5);
    expect(device.log(1)).toBe(0);
    expect(device.log2(8)).toBe(3);
    expect(device.trunc(-1.5)).toBe(-1);
    expect(device.clamp(9, 0, 7)).toBe(7);
    expect(device.min(2, 3) + device.max(2, 3) + device.abs(-2)).toBe(7);
  });
});

describe('bits', () => {
  it('reads and writes the bits of a float', () => {
    fc.assert(fc.property(floats, (x) => Object.is(device.fromBits(device.bitsOf(x)), x)));
    expect(device.bitsOf(1)).toBe(0x3f800000);
  });

  it('tells finite numbers from the others', () => {
    const specials = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
    expect(specials.map(device.isFiniteBits)).toEqual([false, false, false]);
    fc.assert(fc.property(floats, device.isFiniteBits));
  });

  it('packs two halves, the first in the low bits', () => {
    expect(device.packHalf2(1, 2)).toBe(0x40003c00);
    fc.assert(
      fc.property(floats, floats, (low, high) => {
        expect(device.unpackHalf2(device.packHalf2(low, high))).toEqual({ x: device.f16(low), y: device.f16(high) });
      }),
    );
  });
});

describe('vectors and arrays', () => {
  it('computes by component', () => {
    const [a, b] = [device.vec3f(1, 2, 3), device.vec3f(4, 5, 6)];
    expect(device.dot(a, b)).toBe(32);
    expect(device.vectorAdd(a, b)).toEqual({ x: 5, y: 7, z: 9 });
    expect(device.vectorSubtract(a, b)).toEqual({ x: -3, y: -3, z: -3 });
    expect(device.vectorMultiply(a, b)).toEqual({ x: 4, y: 10, z: 18 });
    expect(device.vectorScale(a, 0.5)).toEqual({ x: 0.5, y: 1, z: 1.5 });
    expect(device.vec4u(-1, 1.5, 2, 3)).toEqual({ x: 4294967295, y: 1, z: 2, w: 3 });
    expect(device.vec2i(4294967295, -1.5)).toEqual({ x: -1, y: -1 });
  });

  it('makes zeros that hold what the element type can', () => {
    const bytes = device.zeros('u32', 2);
    bytes[0] = -1;
    expect([...Array.from(bytes as ArrayLike<number>)]).toEqual([4294967295, 0]);
    const floats = device.zeros('f32', 1);
    floats[0] = 0.1;
    expect(floats[0]).toBe(Math.fround(0.1));
    expect(device.zeros('vec4f', 2)[1]).toEqual({ x: 0, y: 0, z: 0, w: 0 });
    expect(device.zeros('i32', 3).length).toBe(3);
  });
});

describe('types', () => {
  it('takes plain numbers everywhere and never one scalar for another', () => {
    expectTypeOf<number>().toExtend<f32>();
    expectTypeOf<number>().toExtend<Static<u32>>();
    expectTypeOf<f32>().not.toExtend<u32>();
    expectTypeOf<u32>().not.toExtend<f32>();
    expectTypeOf<Static<u32>>().toExtend<u32>();
    expectTypeOf<FixedArray<f32, 4>>().not.toExtend<FixedArray<f32, 8>>();
    expectTypeOf<Lookup<f32>>().toBeCallableWith(3);
  });
});
