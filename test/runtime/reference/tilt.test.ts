import { describe, expect, it } from 'vitest';
import { modelFrom } from '../../../dsl/index.js';
import {
  allocationError,
  attentionError,
  decodeTilt,
  emptyTensor,
  encodeTilt,
  fittingWidths,
  normalFrom,
  placeFields,
  rotate,
  seededRandom,
  type TiltOptions,
  toHalf,
  vectorAt,
} from '../../../runtime/reference/index.js';

const model = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 128,
    num_hidden_layers: 1,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  },
  'narrow',
);

/** Keys that have two directions in common before RoPE, about a mean; values and queries are noise. */
function drawn(tokens: number) {
  const random = seededRandom(5);
  const tensor = (heads: number, make: (head: number, token: number) => Float64Array) => {
    const all = emptyTensor(heads, tokens, 32);
    for (let head = 0; head < heads; head++) {
      for (let token = 0; token < tokens; token++) vectorAt(all, head, token).set(make(head, token).map(toHalf));
    }
    return all;
  };
  const noise = (size: number) => Float64Array.from({ length: 32 }, () => size * normalFrom(random));
  const directions = Array.from({ length: 2 }, () => [noise(1), noise(1), noise(2)] as const);
  const keys = tensor(2, (head, token) => {
    const [first, second, mean] = directions[head]!;
    const [a, b] = [normalFrom(random), normalFrom(random)];
    const key = noise(0.02).map((x, i) => x + mean[i]! + a * first[i]! + b * second[i]!);
    return rotate(key, token, model.rope);
  });
  return { keys, values: tensor(2, () => noise(1)), queries: tensor(4, () => noise(0.3)) };
}

const { queries, ...exact } = drawn(300);
const exactValues = {
  rule: { levels: Array.from({ length: 256 }, (_, i) => i / 255), offset: 'least', scale: 'largest' },
  channels: 32,
} as const;
const options: TiltOptions = {
  bits: 1.5,
  tile: 64,
  group: 8,
  rangeBlock: 128,
  queries,
  values: exactValues,
  gains: false,
  sinks: 4,
  window: 8,
};
const errorOf = (change: Partial<TiltOptions>) =>
  attentionError({ queries, exact, decoded: decodeTilt(encodeTilt(exact, model, { ...options, ...change })) });

describe('tile-rotated keys', () => {
  it('come back as they were where there are bits enough', () => {
    const { keys } = decodeTilt(encodeTilt(exact, model, { ...options, bits: 6 }));
    const away = keys.data.reduce((sum, x, i) => sum + (x - exact.keys.data[i]!) ** 2, 0);
    expect(Math.sqrt(away / exact.keys.data.reduce((sum, x) => sum + x * x, 0))).toBeLessThan(0.02);
  });

  it('lose less with more bits, and in tiles than without', () => {
    expect(errorOf({ bits: 3 })).toBeLessThan(errorOf({ bits: 1.5 }));
    // With tiles of 128, places turn pairs farther; of 16, less than half as far as of 64.
    expect(errorOf({ tile: 16 })).toBeLessThan(errorOf({ tile: 128 }));
  });

  it('take a fit of other text, with a mean and steps of their own', () => {
    const other = encodeTilt(exact, model, options).middle;
    const bases = [0, 1].map((head) => ({
      rows: 32,
      columns: 32,
      // The stored entries of a column over their length.
      data: Float64Array.from({ length: 1024 }, (_, at) => {
        const [channel, r] = [Math.floor(at / 32), at % 32];
        const column = other.basisCodes.subarray((head * 32 + r) * 32, (head * 32 + r + 1) * 32);
        return column[channel]! / Math.hypot(...column);
      }),
    }));
    const fit = { weights: other.weights, bases, variances: [], widths: other.widths };
    expect(errorOf({ fit })).toBeLessThan(1.1 * errorOf({}));
  });
});

describe('widths of fields', () => {
  it('fill planes, widest first', () => {
    const { groups, nibbles } = placeFields([3, 5, 2, 0]);
    expect(groups.map(({ bit }) => bit)).toEqual([5, 0, 8, 0]);
    expect(groups.map(({ slot }) => slot)).toEqual([1, 0, 2, 0]);
    expect(nibbles).toBe(3);
    expect(placeFields([5]).nibbles).toBe(2);
    expect(placeFields([0, 0]).nibbles).toBe(0);
  });

  it('are the best of all that fit, in any order', () => {
    const variances = [40, 9, 1, 12, 3, 0.5];
    const choices = [0, 1, 2, 3, 4, 5, 6, 8];
    for (const nibbles of [0, 1, 3, 5]) {
      let least = Number.POSITIVE_INFINITY;
      const walk = (widths: readonly number[]) => {
        if (widths.length < 6) {
          for (const width of choices) walk([...widths, width]);
          return;
        }
        const taken = placeFields(widths.slice(0, 3)).nibbles + placeFields(widths.slice(3)).nibbles;
        if (taken <= nibbles) least = Math.min(least, allocationError(variances, widths));
      };
      walk([]);
      expect(allocationError(variances, fittingWidths(variances, 3, nibbles))).toBeCloseTo(least, 10);
    }
  });
});
