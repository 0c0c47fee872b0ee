import { getFloat16 } from '@petamoriken/float16';
import { describe, expect, it } from 'vitest';
import { float8 } from '../../dsl/index.js';

/** The number of a byte as the specification writes it: sign, exponent, mantissa; NaN and infinities included. */
const decoding = {
  e4m3(byte: number): number {
    const [sign, exponent, mantissa] = [byte >> 7 ? -1 : 1, (byte >> 3) & 15, byte & 7];
    if (exponent === 15 && mantissa === 7) return Number.NaN;
    return sign * (exponent === 0 ? (mantissa / 8) * 2 ** -6 : (1 + mantissa / 8) * 2 ** (exponent - 7));
  },
  /** The upper byte of a float16. */
  e5m2: (byte: number) => getFloat16(new DataView(Uint8Array.of(byte, 0).buffer), 0),
};

const bytes = Array.from({ length: 256 }, (_, byte) => byte);
const noLevels = (): number => {
  throw new Error('the codec reads a table');
};

describe.each([
  { format: 'e4m3', largest: 448, factor: 2 ** -8, smallest: 2 ** -9 },
  { format: 'e5m2', largest: 57344, factor: 2 ** -15, smallest: 2 ** -16 },
] as const)('float8 $format', ({ format, largest, factor, smallest }) => {
  const { device, levels } = float8({ format });
  const decode = decoding[format];
  const finite = bytes.filter((byte) => Number.isFinite(decode(byte)));
  const code = (x: number) => device.code(Math.fround(x), noLevels, 8);
  const value = (byte: number) => device.value(byte, noLevels);

  it('has the extremes of the specification', () => {
    const sizes = finite.map((byte) => Math.abs(decode(byte))).filter((size) => size > 0);
    expect(Math.max(...sizes)).toBe(largest);
    expect(Math.min(...sizes)).toBe(smallest);
  });

  it('reads every finite byte as its number times a power of two, and tells it in the levels', () => {
    for (const byte of finite) expect(value(byte), `byte ${byte}`).toBe(decode(byte) * factor);
    expect(levels(128)).toEqual(bytes.map(value));
    for (const byte of bytes) expect(Number.isFinite(value(byte)), `byte ${byte}`).toBe(true);
  });

  it('finds every finite byte again, and one zero', () => {
    for (const byte of finite) expect(code(value(byte))).toBe(byte === 128 ? 0 : byte);
  });

  /** The nearest number, of two that are equally near the one with an even byte: by looking at all of them. */
  function nearest(x: number): number {
    const sign = x < 0 ? 128 : 0;
    const candidates = finite.filter((byte) => (byte & 128) === sign);
    const distance = (byte: number) => Math.abs(decode(byte) - x / factor);
    return candidates.reduce((best, byte) => {
      const [near, nearer] = [distance(best), distance(byte)];
      return nearer < near || (nearer === near && byte % 2 === 0) ? byte : best;
    });
  }

  it('rounds to nearest, ties to even, beside and at every midpoint', () => {
    const positive = finite.filter((byte) => byte < 128);
    for (const byte of positive.slice(1)) {
      const middle = ((decode(byte) + decode(byte - 1)) / 2) * factor;
      for (const x of [middle, middle * (1 + 2 ** -22), middle * (1 - 2 ** -22)]) {
        expect(code(x), `${x}`).toBe(nearest(x));
        expect(code(-x), `${-x}`).toBe(nearest(-x));
      }
    }
  });

  it('rounds to nearest between the midpoints, over all exponents', () => {
    for (let step = 0; step < 4000; step++) {
      const x = Math.fround(1.75 * 2 ** (-step / 100));
      expect(code(x), `${x}`).toBe(nearest(x));
    }
  });

  it('saturates, and never writes NaN or an infinity', () => {
    const top = finite.filter((byte) => byte < 128).at(-1)!;
    for (const x of [1.75, 1.8, 1.875, 2, 1e30, 3.4e38]) {
      expect(code(x)).toBe(top);
      expect(code(-x)).toBe(top + 128);
    }
    for (const x of [0, -0, 1e-40, 1e-45]) expect(code(x)).toBe(0);
  });

  it('maps the largest magnitude to the largest number, for every f16 but the subnormal ones', () => {
    const top = finite.filter((byte) => byte < 128).at(-1)!;
    for (let maxAbs = 2 ** -14; maxAbs <= 65504; maxAbs *= 1.0625) {
      const scale = device.scale(1, maxAbs);
      expect(code(maxAbs / scale), `${maxAbs}`).toBe(top);
      expect(Math.abs(scale * value(top) - maxAbs) / maxAbs).toBeLessThanOrEqual(2 ** -10);
    }
  });

  it('keeps numbers of the smallest f16, and stores no infinite scale', () => {
    for (const maxAbs of [2 ** -24, 2 ** -23, 3 * 2 ** -24]) {
      const scale = device.scale(1, maxAbs);
      expect(Math.abs(scale * value(code(maxAbs / scale)) - maxAbs) / maxAbs).toBeLessThanOrEqual(1 / 4);
    }
    expect(device.scale(0, 0)).toBe(0);
    expect(device.scale(1, 3e38)).toBe(65504);
  });
});
