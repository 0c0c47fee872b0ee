import { describe, expect, test } from 'vitest';
import { presetModel } from '../../../dsl/model.js';
import { lowRankKeys, normalHalves } from '../../../runtime/bench/inputs.js';
import { unrotatedRows } from '../../../runtime/reference/secondMoment.js';
import { cumulativeEnergy } from '../../../runtime/report/statistics.js';
import { halfValues } from '../../../runtime/verify/draws.js';

const { rope } = presetModel('smollm2-135m');
const shape = { heads: 2, tokens: 200, headDim: 64 };

const rms = (values: Float64Array) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);

describe('inputs', () => {
  test('are the same for the same seed alone', () => {
    expect(normalHalves(shape, 1)).toEqual(normalHalves(shape, 1));
    expect(normalHalves(shape, 1)).not.toEqual(normalHalves(shape, 2));
    expect(lowRankKeys(shape, rope, 1)).toEqual(lowRankKeys(shape, rope, 1));
    expect(lowRankKeys(shape, rope, 1)).not.toEqual(lowRankKeys(shape, rope, 2));
  });

  test('of values are about N(0, 1)', () => {
    const values = halfValues(normalHalves(shape, 3));
    expect(rms(values)).toBeGreaterThan(0.97);
    expect(rms(values)).toBeLessThan(1.03);
    expect(values.every((x) => Math.abs(x) < 6)).toBe(true);
  });

  test('of keys lie near 32 directions once RoPE is undone', () => {
    const values = halfValues(lowRankKeys(shape, rope, 3));
    expect(rms(values)).toBeGreaterThan(0.3);
    expect(rms(values)).toBeLessThan(3);
    const keys = { heads: 2, tokens: 200, channels: 64, data: values };
    const energy = cumulativeEnergy(unrotatedRows(keys, 0, 200, rope));
    expect(energy[31]).toBeGreaterThan(0.97);
    expect(energy[15]).toBeLessThan(0.97);
  });
});
