import { describe, expect, it } from 'vitest';
import { generate } from '../../codegen/generate.js';
import {
  asymmetric,
  defineScheme,
  geometryOf,
  hadamard,
  type KvforgeError,
  kvquant3,
  lloydMax,
  nuq,
  type OutlierCodec,
  outliers,
  perChannel,
  perHead,
  perToken,
  presetModel,
  type Scheme,
  symmetric,
  unrope,
} from '../../dsl/index.js';

const llama = presetModel('llama-3.1-8b');
const smol = presetModel('smollm2-135m');

function refusal(change: object): string {
  try {
    defineScheme({ ...kvquant3, ...change } as Scheme);
  } catch (error) {
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}

describe('a chain with outliers', () => {
  const codec = nuq({ bits: 3 });

  it('has them after the quantizer, whatever comes before it', () => {
    for (const keys of [
      [perHead(codec), outliers({ cap: 1 })],
      [hadamard(), perToken(codec), outliers({ cap: 8 })],
      [unrope(), perChannel(codec), outliers({ cap: 2 })],
    ]) {
      expect(refusal({ keys })).toBe('accepted');
    }
    const expected = 'invalid-scheme: keys: expected a quantizer, after unrope(), polar() or hadamard() or alone, got';
    const step = outliers({ cap: 2 });
    expect(refusal({ keys: [step, perToken(codec)] })).toBe(
      `${expected} ["outliers","quantizer"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
    expect(refusal({ keys: [perToken(codec), step, step] })).toBe(
      `${expected} ["quantizer","outliers","outliers"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`,
    );
    expect(refusal({ values: [step] })).toBe(
      'invalid-scheme: values: expected a quantizer, after hadamard() or alone, got ["outliers"]. Write perToken(...); outliers({...}) may follow it.',
    );
  });

  it.each([0, 9, 1.5, Number.NaN, '2', undefined])('is refused for a cap of %s', (cap) => {
    const values = [hadamard(), perToken(codec), outliers({ cap } as OutlierCodec)];
    const shown = cap === '2' ? '"2"' : String(cap);
    expect(refusal({ values })).toBe(
      `invalid-scheme: values[2].cap: expected a whole number from 1 to 8, got ${shown}. KVQuant keeps 1 %.`,
    );
  });

  it.each([0, -0.01, 0.00005, 0.21, Number.NaN, '1', null])('is refused for a trim of %s', (trim) => {
    const shown = trim === '1' ? '"1"' : String(trim);
    expect(refusal({ keys: [unrope(), perChannel(codec, { trim: trim as number })] })).toBe(
      `invalid-scheme: keys[1].trim: expected a multiple of 0.0001 from 0.0001 to 0.2, got ${shown}. KVQuant leaves out 0.005 at each end.`,
    );
  });

  it('has words for so many of each token and KV head, and a range', () => {
    const g = geometryOf(kvquant3, llama);
    expect(g.keys).toMatchObject({ trim: 50, outlierCap: 2, range: [-1, 1], scaleTokens: 0, unrotated: true });
    expect(g.values).toMatchObject({ trim: 100, outlierCap: 2, range: [-1, 1], scaleTokens: 1 });
    const ranges = [asymmetric({ bits: 2 }), symmetric({ bits: 2 }), lloydMax({ bits: 2 })].map(
      (own) => geometryOf({ ...kvquant3, values: [perToken(own), outliers({ cap: 1 })] }, llama).values.range,
    );
    const [first, , , last] = lloydMax({ bits: 2 }).levels(128);
    expect(ranges).toEqual([
      [0, 1],
      [-1, 1],
      [first, last],
    ]);
  });

  it('takes the plain schedule of attention with tensor cores, and the manifest says so', async () => {
    const target = { language: 'cuda', arch: 'sm_90', tensorCores: true } as const;
    const values = [hadamard(), perToken(nuq({ bits: 4 })), outliers({ cap: 2 })] as const;
    const turned = { ...kvquant3, keys: [hadamard(), perToken(nuq({ bits: 4 }))], values } as const;
    const { manifest } = await generate(turned, smol, target);
    expect(manifest.kernels.find(({ entry }) => entry === 'attend')?.tunables).toMatchObject({ products: 0 });
    await expect(generate(turned, smol, target, { attend: { products: 1 } })).rejects.toThrow(
      'takes keys and values without outliers',
    );
  });
});
