import { describe, expect, it } from 'vitest';
import { unbiasedGain } from '../../../runtime/reference/index.js';

describe('unbiasedGain', () => {
  it('gives coded values the product with the values that these have with themselves', () => {
    const values = [1, -2, 3];
    const coded = [0.8, -1.5, 2.9];
    const squares = values.reduce((sum, y) => sum + y * y, 0);
    const products = values.reduce((sum, y, i) => sum + y * coded[i]!, 0);
    const gain = unbiasedGain(squares, products);
    expect(values.reduce((sum, y, i) => sum + y * gain * coded[i]!, 0)).toBeCloseTo(squares, 12);
  });

  it('is 1 where nothing is known, and never extreme', () => {
    expect(unbiasedGain(0, 0)).toBe(1);
    expect(unbiasedGain(5, -1)).toBe(1);
    expect(unbiasedGain(1e9, 1)).toBe(4);
    expect(unbiasedGain(1, 1e9)).toBe(0.25);
  });
});
