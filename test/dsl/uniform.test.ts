import { describe, expect, it } from 'vitest';
import { asymmetric, midRise, symmetric } from '../../dsl/index.js';

/** How many numbers are coded for each width. */
const draws = 2001;

describe.each([2, 3, 4, 8] as const)('whole numbers of %i bits', (bits) => {
  const steps = 2 ** (bits - 1) - 1;

  it('are symmetric about zero without an offset, within half a step of what they code', () => {
    const { device, levels } = symmetric({ bits });
    const lookup = (i: number) => levels(128)[i]!;
    expect(device.offset).toBeUndefined();
    expect(levels(128).map((level) => Math.round(level * steps * 2) / 2)).toEqual(
      Array.from({ length: 2 ** bits }, (_, i) => i - steps - 1),
    );
    for (let draw = 0; draw < draws; draw++) {
      const x = Math.fround((draw / (draws - 1)) * 2 - 1);
      const code = device.code(x, lookup, bits);
      expect(code).toBeGreaterThanOrEqual(1);
      expect(code).toBeLessThan(2 ** bits);
      const [error, half] = [Math.abs(device.value(code, lookup) - x), 0.5 / steps];
      expect(error).toBeLessThanOrEqual(half * (1 + 1e-6));
      expect(device.value(device.code(-x, lookup, bits), lookup)).toBeCloseTo(-device.value(code, lookup), 12);
    }
    expect([-9, 9].map((x) => device.code(x, lookup, bits))).toEqual([1, 2 ** bits - 1]);
  });

  it('reach from the least number to the greatest with an offset', () => {
    const { device, levels } = asymmetric({ bits });
    const lookup = (i: number) => levels(32)[i]!;
    const largest = 2 ** bits - 1;
    expect(levels(32)).toEqual(Array.from({ length: 2 ** bits }, (_, i) => i / largest));
    const [least, greatest] = [-0.75, 2.25];
    const offset = device.offset!(least, greatest);
    const scale = device.scale(1, greatest - offset);
    expect([offset, scale]).toEqual([-0.75, 3]);
    for (let draw = 0; draw < draws; draw++) {
      const x = least + (draw / (draws - 1)) * (greatest - least);
      const code = device.code(Math.fround((x - offset) / scale), lookup, bits);
      expect(code).toBeGreaterThanOrEqual(0);
      expect(code).toBeLessThanOrEqual(largest);
      const decoded = offset + scale * device.value(code, lookup);
      expect(Math.abs(decoded - x)).toBeLessThanOrEqual((scale / largest / 2) * (1 + 1e-6));
    }
    expect([-9, 0, 1, 9].map((x) => device.code(x, lookup, bits))).toEqual([0, 0, largest, largest]);
  });

  it('are as many intervals as codes with midRise, each within half of one from its middle', () => {
    const { device, levels } = midRise({ bits });
    const lookup = (i: number) => levels(32)[i]!;
    const count = 2 ** bits;
    expect(levels(32).map((level) => level * 2 * count)).toEqual(Array.from({ length: count }, (_, i) => 2 * i + 1));
    const [least, greatest] = [-0.75, 2.25];
    const offset = device.offset!(least, greatest);
    const scale = device.scale(1, greatest - offset);
    const taken = new Set<number>();
    for (let draw = 0; draw < draws; draw++) {
      const x = least + (draw / (draws - 1)) * (greatest - least);
      const code = device.code(Math.fround((x - offset) / scale), lookup, bits);
      taken.add(code);
      const decoded = offset + scale * device.value(code, lookup);
      expect(Math.abs(decoded - x)).toBeLessThanOrEqual((scale / count / 2) * (1 + 1e-4));
    }
    expect(taken.size).toBe(count);
    expect([-9, 0, 1, 9].map((x) => device.code(x, lookup, bits))).toEqual([0, 0, count - 1, count - 1]);
  });
});

describe('offsets and scales of whole numbers', () => {
  it('are halves, and never infinite', () => {
    const { offset, scale } = asymmetric({ bits: 4 }).device;
    expect([offset!(0.1, 9), offset!(-1e6, 0), offset!(1e6, 2e6)]).toEqual([0.0999755859375, -65504, 65504]);
    expect([scale(1, 0.1), scale(1, 1e6), scale(0, 0)]).toEqual([0.0999755859375, 65504, 0]);
    expect(symmetric({ bits: 4 }).device.scale(1, 1e6)).toBe(65504);
  });
});
