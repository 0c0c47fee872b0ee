import { describe, expect, it } from 'vitest';
import { type KvforgeError, nf4, table } from '../../dsl/index.js';
import { inverseNormalCdf, normalCdf } from '../../runtime/reference/index.js';

/** The nearest level, the lower of two that are equally near: by looking at all of them. */
function nearest(x: number, levels: readonly number[]): number {
  const distances = levels.map((level) => Math.abs(level - x));
  return distances.indexOf(Math.min(...distances));
}

describe('table', () => {
  it.each([
    [2, [-1, -0.25, 0.25, 1]],
    [3, [-1, -0.5, -0.25, 0, 0.125, 0.25, 0.5, 1]],
    [4, Array.from({ length: 16 }, (_, i) => (i - 5) / 8)],
    [8, Array.from({ length: 256 }, (_, i) => (i - 128) / 128)],
  ] as const)('codes with %i bits by the nearest level and saturates', (bits, levels) => {
    const codec = table({ name: 'ours', levels });
    expect(codec).toMatchObject({ kind: 'scalar', name: 'ours', bits });
    expect(codec.levels(64)).toEqual(levels);
    const lookup = (i: number) => levels[i]!;
    // Steps that no midpoint of these levels is a multiple of, but for zero.
    for (let step = -1200; step <= 1200; step++) {
      const x = step / 1000.5;
      const code = codec.device.code(x, lookup, bits);
      expect(code, `${x}`).toBe(nearest(x, levels));
      expect(codec.device.value(code, lookup)).toBe(levels[code]);
    }
  });

  it('takes the lower of two levels that are equally near', () => {
    const levels = [-1, -0.5, 0.5, 1];
    const { device } = table({ name: 'ours', levels });
    expect([-0.75, 0, 0.75].map((x) => device.code(x, (i) => levels[i]!, 2))).toEqual([0, 1, 2]);
  });

  it('scales by the largest magnitude', () => {
    const { scale } = table({ name: 'ours', levels: [-1, -0.5, 0.5, 1] }).device;
    expect([scale(9, 0.1), scale(1, 65504), scale(1, 1e6), scale(0, 0)]).toEqual([0.0999755859375, 65504, 65504, 0]);
  });

  it.each([0, 1, 5, 32, 64])('has no code for %i levels', (count) => {
    const make = () => table({ name: 'ours', levels: Array.from({ length: count }, (_, i) => i) });
    expect(make).toThrow(
      `ours.levels: expected 4, 8, 16 or 256 numbers, got ${count}. A code of 2, 3, 4 or 8 bits names every level.`,
    );
    try {
      make();
    } catch (error) {
      expect((error as KvforgeError).code).toBe('invalid-codec');
    }
  });
});

describe('nf4', () => {
  const levels = nf4().levels(64);

  it('has the published levels', () => {
    const published = [
      -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
      -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
      0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ];
    expect(levels.length).toBe(16);
    levels.forEach((level, i) => {
      expect(Math.abs(level - published[i]!), `level ${i}`).toBeLessThan(2.5e-7);
    });
  });

  it('spreads each side of zero evenly over probabilities up to 1 - (1/32 + 1/30) / 2', () => {
    const extreme = 1 - (1 / 32 + 1 / 30) / 2;
    const largest = inverseNormalCdf(extreme);
    levels.forEach((level, i) => {
      const share = i < 7 ? (i - 7) / 7 : (i - 7) / 8;
      expect(normalCdf(level * largest)).toBeCloseTo(0.5 + share * (extreme - 0.5), 9);
    });
  });

  it('holds zero and the largest magnitude of either sign exactly', () => {
    const { device } = nf4();
    const scale = device.scale(1, 3.3);
    const coded = (x: number) =>
      device.value(
        device.code(x / scale, (i) => levels[i]!, 4),
        (i) => levels[i]!,
      ) * scale;
    expect([coded(0), coded(3.3), coded(-3.3)]).toEqual([0, scale, -scale]);
  });
});
