import { describe, expect, it } from 'vitest';
import {
  decodeScalar,
  encodeBlock,
  encodeOutliers,
  outliersOf,
  rangeOf,
  type ScalarCodes,
  type ScalarParts,
} from '../../../runtime/reference/index.js';

/** Two heads of four channels, two tokens; a scale a token and head, and an offset of 1. */
const codes: ScalarCodes = {
  form: 'cached',
  block: { tokens: 1, channels: 4 },
  codes: Uint8Array.of(2, 1, 0, 1, 1, 1, 1, 1, 2, 2, 0, 2, 0, 1, 2, 1),
  scales: Float64Array.of(1, 2, 1, 0),
  offsets: Float64Array.of(1, 1, 1, 1),
  values: Float64Array.of(-1, 0, 1),
};
const numbers = {
  heads: 2,
  tokens: 2,
  channels: 4,
  // [head][token][channel]
  data: Float64Array.of(5, 1, -4, 2, 3, 4, -7, 5, 1, 1, 1, 1, 1, 1, 3, 1),
};
const range = [-1, 1] as const;

describe('the range of a block', () => {
  it('leaves out as many numbers at each end as the share says, rounded', () => {
    const x = Float64Array.from({ length: 100 }, (_, i) => (i * 37) % 100);
    expect(rangeOf(x, 0)).toEqual({ least: 0, greatest: 99 });
    expect(rangeOf(x, 49)).toEqual({ least: 0, greatest: 99 });
    expect(rangeOf(x, 50)).toEqual({ least: 1, greatest: 98 });
    expect(rangeOf(x, 149)).toEqual({ least: 1, greatest: 98 });
    expect(rangeOf(x, 2000)).toEqual({ least: 20, greatest: 79 });
    expect(rangeOf(Float64Array.of(-3, -30, -200), 0)).toEqual({ least: -200, greatest: -3 });
    expect(rangeOf(new Float64Array(0), 100)).toEqual({ least: 0, greatest: 0 });
  });

  it('is what offset and scale see, and numbers beyond it have the codes of its ends', () => {
    const x = Float64Array.of(-100, 0, 1, 2, 3, 4, 5, 6, 7, 100);
    const rule = { levels: [-1, 0, 1], offset: 'middle', scale: 'covering', trim: 1000 } as const;
    expect(encodeBlock(x, rule)).toEqual({
      offset: 3.5,
      scale: 3.5,
      codes: Uint8Array.of(0, 0, 0, 1, 1, 1, 1, 2, 2, 2),
    });
    const norm = encodeBlock(Float64Array.of(-100, 3, 4, 100), { ...rule, offset: 'none', scale: 'norm', trim: 2500 });
    // 3 and 4, and the two that are clamped to them.
    expect(norm.scale).toBeCloseTo(Math.hypot(3, 3, 4, 4), 2);
  });

  it('is not below its numbers where the scale covers them', () => {
    const rule = { levels: [-1, 1], offset: 'none', scale: 'covering' } as const;
    expect(encodeBlock(Float64Array.of(1 + 2 ** -12), rule).scale).toBe(1 + 2 ** -10);
    expect(encodeBlock(Float64Array.of(2 ** -24 * 1.2), rule).scale).toBe(2 ** -23);
    expect(encodeBlock(Float64Array.of(1), rule).scale).toBe(1);
  });
});

describe('outliers', () => {
  it('are what lies beyond the range, by their residuals, lower channels first', () => {
    const at = { token: 0, head: 0, heads: 2 };
    expect(outliersOf(numbers.data.subarray(0, 4), at, codes, range)).toEqual([
      { channel: 2, residual: -4 },
      { channel: 0, residual: 3 },
    ]);
    expect(outliersOf(numbers.data.subarray(4, 8), { ...at, token: 1 }, codes, range)).toEqual([
      { channel: 2, residual: -7 },
      { channel: 3, residual: 3 },
      { channel: 1, residual: 2 },
      { channel: 0, residual: 1 },
    ]);
    expect(outliersOf(numbers.data.subarray(12), { token: 1, head: 1, heads: 2 }, codes, range)).toEqual([
      { channel: 2, residual: 2 },
    ]);
    const ties = outliersOf(Float64Array.of(3, 1, 1, -1), { token: 1, head: 1, heads: 2 }, codes, range);
    expect(ties.map(({ channel }) => channel)).toEqual([0, 3]);
  });

  it('are kept up to the cap, and counted beyond it', () => {
    const { kept, clamped } = encodeOutliers(numbers, codes, { cap: 2, range });
    expect(clamped).toBe(2);
    expect([...kept.channels]).toEqual([2, 0, 0, 0, 2, 3, 2, 0]);
    expect([...kept.residuals]).toEqual([-4, 3, 0, 0, -7, 3, 2, 0]);
  });

  it('add up with what the codes stand for', () => {
    const { kept } = encodeOutliers(numbers, codes, { cap: 4, range });
    const empty = { heads: 2, tokens: 0, channels: 4, data: new Float64Array(0) };
    const none = { keys: empty, values: empty };
    const middle = { ...codes, outliers: kept };
    const parts: ScalarParts = {
      kvHeads: 2,
      headDim: 4,
      rope: { invFreq: [1, 1], pairing: 'half' },
      sinks: none,
      middle: { tokens: 2, firstPosition: 0, keys: middle, values: { ...middle, outliers: { ...kept, cap: 4 } } },
      stream: {
        tokens: 0,
        keyCodes: new Uint16Array(0),
        valueCodes: new Uint16Array(0),
        keyNorms: new Float64Array(0),
        valueNorms: new Float64Array(0),
        levels: new Float64Array(2),
      },
      window: none,
    };
    const decoded = decodeScalar(parts).keys;
    // All that lies beyond the range comes back; of the rest, what its code stands for.
    expect([...decoded.data]).toEqual([5, 1, -4, 1, 3, 4, -7, 5, 1, 1, 1, 1, 1, 1, 3, 1]);
  });
});
