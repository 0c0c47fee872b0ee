import { describe, expect, it } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { arctangent, fromPolar, toPolar } from '../../dsl/codecs/polar.js';
import { firstOfPair, secondOfPair } from '../../dsl/codecs/unrope.js';
import {
  defineScheme,
  geometryOf,
  hadamard,
  type KvforgeError,
  midRise,
  outliers,
  pca,
  perChannel,
  perToken,
  polar,
  polarQuant4,
  presetModel,
  qjl,
  type Scheme,
  unrope,
} from '../../dsl/index.js';
import { pairsOf } from '../../runtime/reference/index.js';

/** Half-precision numbers of every size and sign, zeros of both included. */
const halves = [0, 2 ** -24, 2 ** -14, 0.333251953125, 1, 1.0009765625, 3.140625, 1000, 65504].flatMap((x) => [x, -x]);
const points = halves.flatMap((a) => halves.map((b) => [a, b] as const));

describe('a point as radius and angle', () => {
  it('is what Math has, but for the signs of zeros', () => {
    for (const [a, b] of points) {
      const { x: radius, y: angle } = toPolar(a, b);
      const at = `of (${a}, ${b})`;
      expect(Math.abs(radius - Math.hypot(a, b)), `radius ${at}`).toBeLessThanOrEqual(Math.hypot(a, b) * 1.2e-7);
      expect(Math.abs(angle - Math.atan2(b + 0, a + 0) / Math.PI), `angle ${at}`).toBeLessThanOrEqual(1e-7);
    }
  });

  it('has an angle of a slope to a part in 10^7', () => {
    for (let i = 0; i <= 4000; i++) {
      const slope = Math.fround(i / 4000);
      const exact = Math.atan(slope) / Math.PI;
      expect(Math.abs(arctangent(slope) - exact)).toBeLessThanOrEqual(exact * 2e-8);
    }
  });

  it('has one angle for directions that differ in the sign of a zero', () => {
    expect([toPolar(-1, 0), toPolar(-1, -0)]).toEqual([
      { x: 1, y: 1 },
      { x: 1, y: 1 },
    ]);
    for (const zero of [toPolar(0, 0), toPolar(-0, 0), toPolar(0, -0), toPolar(-0, -0)]) {
      expect([zero.x, Math.abs(zero.y)]).toEqual([0, 0]);
    }
  });

  it('comes back, from any angle of a few turns', () => {
    for (let i = -3000; i <= 3000; i++) {
      const angle = Math.fround(i / 1000);
      const { x, y } = fromPolar(3, angle);
      expect(Math.abs(x - 3 * Math.cos(Math.PI * angle)), `cosine of ${angle}`).toBeLessThanOrEqual(3e-7);
      expect(Math.abs(y - 3 * Math.sin(Math.PI * angle)), `sine of ${angle}`).toBeLessThanOrEqual(3e-7);
    }
    for (const [a, b] of points) {
      const { x: radius, y: angle } = toPolar(a, b);
      const back = fromPolar(radius, angle);
      expect(Math.hypot(back.x - a, back.y - b)).toBeLessThanOrEqual(6e-7 * Math.hypot(a, b));
    }
  });

  it('is the origin where the radius is below zero, which would point the other way', () => {
    for (const angle of [-1, -0.3, 0, 0.5, 1]) {
      const { x, y } = fromPolar(-2, angle);
      expect([Math.abs(x), Math.abs(y)]).toEqual([0, 0]);
    }
  });
});

function refusal(change: object): string {
  try {
    defineScheme({ ...polarQuant4, ...change } as Scheme);
  } catch (error) {
    return `${(error as KvforgeError).code}: ${(error as KvforgeError).message}`;
  }
  return 'accepted';
}

describe('keys as radius and angle', () => {
  const codec = midRise({ bits: 4 });

  it('have scales by channel, over any tokens, and outliers if asked for', () => {
    expect(refusal({ keys: [polar(), perChannel(codec)] })).toBe('accepted');
    expect(refusal({ keys: [polar(), perChannel(codec, { tokens: 16, trim: 0.05 }), outliers({ cap: 2 })] })).toBe(
      'accepted',
    );
    for (const [quantizer, channels] of [
      [perToken(codec), '"head"'],
      [perToken(codec, { channels: 16 }), '16'],
    ] as const) {
      expect(refusal({ keys: [polar(), quantizer] })).toBe(
        `invalid-scheme: keys[1].block.channels: expected 1 after polar(), got ${channels}. Write perChannel(...): radii and angles have no scale in common.`,
      );
    }
  });

  it('are of keys alone, in place of any other step', () => {
    expect(refusal({ values: [polar(), perChannel(codec)] })).toBe(
      'invalid-scheme: values: expected a quantizer, after hadamard() or alone, got ["polar","quantizer"]. Write perToken(...); outliers({...}) may follow it.',
    );
    expect(refusal({ keys: [polar(), hadamard(), perChannel(codec)] })).toBe(
      'invalid-scheme: keys: expected a quantizer, after unrope(), polar() or hadamard() or alone, got ["polar","transform","quantizer"]. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.',
    );
  });

  it('are told that a quantizer is missing, and not a low-rank code, where one is', () => {
    const refused = (given: string) =>
      `invalid-scheme: keys: expected a quantizer, after unrope(), polar() or hadamard() or alone, got ${given}. Write perToken(...); outliers({...}) may follow it, or qjl() where hadamard() comes first.`;
    expect(refusal({ keys: [polar()] })).toBe(refused('["polar"]'));
    expect(refusal({ keys: [hadamard(), qjl()] })).toBe(refused('["transform","qjl"]'));
    expect(refusal({ keys: [unrope(), outliers({ cap: 2 })] })).toBe(refused('["rotary","outliers"]'));
    const lowRank = 'invalid-scheme: keys: expected codecs of kind rotary, low-rank, got';
    expect(refusal({ keys: [polar(), pca({ rank: 64, bits: 4, group: 64 })] })).toBe(
      `${lowRank} ["polar","low-rank"]. Write unrope(), pca({...}).`,
    );
    expect(refusal({ keys: [unrope()] })).toBe(`${lowRank} ["rotary"]. Write unrope(), pca({...}).`);
  });

  it('are what the geometry says', () => {
    const g = geometryOf(polarQuant4, presetModel('llama-3.1-8b'));
    expect(g.keys).toMatchObject({ polar: true, unrotated: false, turned: false, scaleTokens: 128, scaleChannels: 1 });
    expect(g.values).toMatchObject({ polar: false });
  });

  it.each([
    { rotated: 4, pairs: 4, pairing: 'half' },
    { rotated: 4, pairs: 4, pairing: 'interleaved' },
    { rotated: 3, pairs: 8, pairing: 'half' },
    { rotated: 3, pairs: 8, pairing: 'interleaved' },
    { rotated: 0, pairs: 2, pairing: 'half' },
  ] as const)('have the pairs of the kernels in the reference too: $rotated of $pairs, $pairing', (shape) => {
    const { rotated, pairs, pairing } = shape;
    const wanted = Array.from({ length: pairs }, (_, pair) =>
      [firstOfPair, secondOfPair].map((channel) => channel(pair, rotated, pairs, pairing === 'half' ? 0 : 1)),
    );
    expect(pairsOf({ invFreq: new Array(rotated).fill(1), pairing }, pairs * 2)).toEqual(wanted);
  });

  it('take the plain schedule of attention with tensor cores, and the manifest says so', async () => {
    const target = { language: 'cuda', arch: 'sm_90', tensorCores: true } as const;
    const model = presetModel('smollm2-135m');
    const { manifest } = await generate(polarQuant4, model, target);
    expect(manifest.kernels.find(({ entry }) => entry === 'attend')?.tunables).toMatchObject({ products: 0 });
    await expect(generate(polarQuant4, model, target, { attend: { products: 1 } })).rejects.toThrow(
      'takes keys by channel, not as radius and angle',
    );
  });
});
