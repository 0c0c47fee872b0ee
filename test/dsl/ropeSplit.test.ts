import { describe, expect, test } from 'vitest';
import { presetModel } from '../../dsl/index.js';
import { fastPairsOf, splitError, splitFunctions, splitRope, splitTile } from '../../dsl/ropeSplit.js';

describe.each(['llama-3.1-8b', 'smollm2-135m', 'qwen2.5-7b', 'phi-3-mini', 'gemma-2-9b'] as const)('%s', (name) => {
  const model = presetModel(name);
  const { invFreq } = model.rope;
  const pairs = model.headDim / 2;
  const fast = fastPairsOf(model);

  test('the functions give cosine and sine of every slow pair within the error that is returned', () => {
    const { functions, coefficients, error } = splitRope(invFreq, pairs, fast);
    expect(error).toBeLessThanOrEqual(splitError);
    let worst = 0;
    for (let pair = fast; pair < pairs; pair++) {
      for (let i = 0; i < splitTile; i++) {
        const sums = [0, 0];
        for (let f = 0; f < splitFunctions; f++) {
          const value = functions[i * splitFunctions + f]!;
          sums[0]! += value * coefficients[(pair * splitFunctions + f) * 2]!;
          sums[1]! += value * coefficients[(pair * splitFunctions + f) * 2 + 1]!;
        }
        const angle = (invFreq[pair] ?? 0) * i;
        worst = Math.max(worst, Math.abs(sums[0]! - Math.cos(angle)), Math.abs(sums[1]! - Math.sin(angle)));
      }
    }
    expect(worst).toBeCloseTo(error, 12);
  });

  test('what multiplies halves stays below 2', () => {
    const { functions, coefficients } = splitRope(invFreq, pairs, fast);
    expect(Math.max(...functions.map(Math.abs))).toBeLessThanOrEqual(1);
    expect(Math.max(...coefficients.slice(fast * splitFunctions * 2).map(Math.abs))).toBeLessThan(1.1);
  });

  test('eight fast pairs fewer would not do', () => {
    expect(fast % 8).toBe(0);
    if (fast > 0) expect(splitRope(invFreq, pairs, fast - 8).error).toBeGreaterThan(splitError);
  });
});

test('pairs that do not turn need one function, and leave no error', () => {
  const { functions, coefficients, error } = splitRope([], 8, 0);
  expect(error).toBe(0);
  expect([...coefficients.slice(0, splitFunctions * 2)].map((x) => x + 0)).toEqual([1, 0, 0, 0, 0, 0, 0, 0]);
  expect(functions.every((value, k) => value === (k % splitFunctions === 0 ? 1 : 0))).toBe(true);
});
