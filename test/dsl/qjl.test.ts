import { describe, expect, it } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { projectionSigns } from '../../dsl/codecs/qjl.js';
import {
  defineScheme,
  geometryOf,
  hadamard,
  type KvforgeError,
  lloydMax,
  perToken,
  presetModel,
  qjl,
  type Scheme,
  turboQuantProd4,
} from '../../dsl/index.js';

function refusalOf(step: () => unknown): string {
  try {
    step();
  } catch (error) {
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}
const refusal = (change: object) => refusalOf(() => defineScheme({ ...turboQuantProd4, ...change } as Scheme));

describe('the signs of channels', () => {
  it('are 1 or -1, one as often as the other, and others for another seed', () => {
    const signs = [1, 2, 3, 4, 5, 6, 7, 8].flatMap((seed) => projectionSigns(seed, 256));
    expect(new Set(signs)).toEqual(new Set([1, -1]));
    // 2048 throws of a coin: five standard deviations.
    expect(Math.abs(signs.reduce((sum, sign) => sum + sign, 0))).toBeLessThan(5 * Math.sqrt(2048));
    expect(projectionSigns(1, 256)).toEqual(projectionSigns(1, 256));
    const alike = projectionSigns(1, 256).filter((sign, i) => sign === projectionSigns(2, 256)[i]).length;
    expect(Math.abs(alike - 128)).toBeLessThan(5 * 8);
  });
});

describe('signs of what codes leave', () => {
  const codec = lloydMax({ bits: 3 });

  it('are of keys after the transform alone', () => {
    expect(refusal({ keys: [hadamard(), perToken(codec), qjl({ seed: 7 })] })).toBe('accepted');
    const expected = 'expected a quantizer, after unrope(), polar() or hadamard() or alone, got';
    expect(refusal({ keys: [perToken(codec), qjl()] })).toBe(
      `invalid-scheme: keys: ${expected} ["quantizer","qjl"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
    expect(refusal({ values: [hadamard(), perToken(codec), qjl()] })).toBe(
      'invalid-scheme: values: expected a quantizer, after hadamard() or alone, got ["transform","quantizer","qjl"]. Write perToken(...); outliers({...}) may follow it.',
    );
  });

  it.each([-1, 0.5, 2 ** 32, '1'])('are refused for a seed of %s', (seed) => {
    expect(refusal({ keys: [hadamard(), perToken(codec), qjl({ seed: seed as number })] })).toBe(
      `invalid-scheme: keys[2].seed: expected a whole number from 0 to 4294967295, got ${JSON.stringify(seed)}. Leave it out for 1.`,
    );
  });

  it('are refused for heads that one transform does not project', () => {
    expect(refusalOf(() => geometryOf(turboQuantProd4, presetModel('phi-3-mini')))).toBe(
      'invalid-scheme: keys[2]: expected a head dimension that is a power of two from 32 on, got 96. One transform projects a whole head; take the keys of turboquant4.',
    );
  });

  it('have a bit a channel and a length a vector in the cache', () => {
    const g = geometryOf(turboQuantProd4, presetModel('llama-3.1-8b'));
    expect(g.keys.projection).toEqual(projectionSigns(1, 128));
    expect(g.values.projection).toEqual([]);
  });

  it('take the plain schedule of attention with tensor cores, and the manifest says so', async () => {
    const target = { language: 'cuda', arch: 'sm_90', tensorCores: true } as const;
    const model = presetModel('smollm2-135m');
    const { manifest } = await generate(turboQuantProd4, model, target);
    expect(manifest.kernels.find(({ entry }) => entry === 'attend')?.tunables).toMatchObject({ products: 0 });
    await expect(generate(turboQuantProd4, model, target, { attend: { products: 1 } })).rejects.toThrow(
      'takes keys without the signs of what their codes leave',
    );
  });
});
