import { describe, expect, it } from 'vitest';
import { normalStep } from '../../dsl/codecs/uniformNormal.js';
import {
  asymmetric,
  defineScheme,
  gain,
  geometryOf,
  hadamard,
  mix,
  perChannel,
  perToken,
  presetModel,
  type Scheme,
  shard,
  tileRotation,
  tiltFast,
  tiltSafe,
  transformCode,
  uniformNormal,
  unrope,
} from '../../dsl/index.js';

const llama = presetModel('llama-3.1-8b');

/** What types do not refuse where a scheme comes from a file. */
function refusalOf(change: Record<string, unknown>): string {
  try {
    geometryOf(defineScheme({ ...tiltFast, ...change } as unknown as typeof tiltFast), llama);
    return 'accepted';
  } catch (error) {
    return (error as Error).message;
  }
}

const rotation = tileRotation({ tile: 64 });
const keysOf = (code: object) => ({ keys: [unrope(), rotation, { ...transformCode({ bits: 1.5 }), ...code }] });

describe('a scheme with tile-rotated keys', () => {
  it('has the sizes of its rows', () => {
    const g = geometryOf(tiltFast, llama);
    expect(g).toMatchObject({ family: 'tilt', tile: 64, rangeBlock: 512, groupComponents: 16, headGroups: 8 });
    // 1.5 bits of 8 groups of 8 heads, in nibbles; 12288 bytes of key planes, and 2176 of values for each head.
    expect(g).toMatchObject({ keyNibbles: 24, rowWords: (12288 + 8 * 2176) / 4, packedValues: true });
    expect(geometryOf(tiltSafe, llama)).toMatchObject({ keyNibbles: 32, rowWords: 4096, packedValues: false });
  });

  it('narrows its groups with the heads', () => {
    expect(geometryOf(tiltFast, presetModel('smollm2-135m'))).toMatchObject({ groupComponents: 8, headGroups: 8 });
  });

  it.each([
    [
      keysOf({ bits: 1.3 }),
      'keys[2].bits: expected a multiple of 1/4 from 1/4 to 6, got 1.3. Give the mean over the channels: 1.5.',
    ],
    [
      keysOf({ bits: '1.5' }),
      'keys[2].bits: expected a multiple of 1/4 from 1/4 to 6, got "1.5". Give the mean over the channels: 1.5.',
    ],
    [
      keysOf({ bits: 7 }),
      'keys[2].bits: expected a multiple of 1/4 from 1/4 to 6, got 7. Give the mean over the channels: 1.5.',
    ],
    [
      keysOf({ rangeBlock: 100 }),
      'keys[2].rangeBlock: expected 0, 128, 256, 512, 1024 or 2048, got 100. Leave it out for 512.',
    ],
    [
      { keys: [unrope(), { ...rotation, tile: 48 }, transformCode({ bits: 1.5 })] },
      'keys[1].tile: expected 16, 32, 64 or 128, got 48. With 64 attention turns a query once for 64 tokens.',
    ],
    [
      { keys: [unrope(), transformCode({ bits: 1.5 })] },
      'keys: expected codecs of kind rotary, tile-rotation, transform-code, got ["rotary","transform-code"]. Write unrope(), tileRotation({ tile: 64 }), transformCode({ bits: 1.5 }).',
    ],
    [
      { values: [perToken(uniformNormal({ bits: 2 })), gain()] },
      'values: expected codecs of kind transform, quantizer, gain, got ["quantizer","gain"]. Write hadamard(), perToken(uniformNormal({ bits: 2 })), gain().',
    ],
    [
      { values: [hadamard(), perChannel(asymmetric({ bits: 2 }))] },
      'values[1].block.tokens: expected 1, got "prompt". Write perToken(...).',
    ],
    [
      { values: [hadamard(), perToken(asymmetric({ bits: 3 })), gain()] },
      'values[2]: expected no gain but after values of 2 bits with a norm a token, got asymmetric of 3 bits. Leave gain() out: such a code is not biased, or hardly.',
    ],
  ])('refuses %o', (change, message) => {
    expect(refusalOf(change)).toBe(message);
  });

  it('refuses heads that fill no lanes', () => {
    expect(() => geometryOf(tiltFast, { ...llama, headDim: 80, width: 640 })).toThrow(
      'model.headDim: expected a multiple of 32, got 80. Codes of a row lie as the lanes of a warp take them.',
    );
  });

  it('mixes with others of its kind alone', () => {
    const mixed = mix({ name: 'mixed', keys: tiltSafe, values: tiltFast });
    expect(geometryOf(mixed, llama)).toMatchObject({ keyNibbles: 32, packedValues: true, gained: true });
    const with_ = (keys: Scheme, values: Scheme) => () => mix({ name: 'mixed', keys, values } as never);
    const expected = 'expected a scheme with tile-rotated keys, as these mix only with one another, got shard.';
    expect(with_(tiltFast, shard)).toThrow(`mix.values: ${expected} Take both from schemes such as tilt-fast.`);
    expect(with_(shard, tiltFast)).toThrow(`mix.keys: ${expected} Take both from schemes such as tilt-fast.`);
  });
});

describe('uniform levels for a normal distribution', () => {
  // Max 1960, table II.
  it.each([
    [1, 1.596],
    [2, 0.9957],
    [3, 0.586],
    [4, 0.3352],
  ])('with %i bits have the published step', (bits, step) => {
    expect(normalStep(bits)).toBeCloseTo(step, 3);
  });

  it('leave less error than steps a hundredth wider or narrower', () => {
    const errorOf = (step: number) => {
      let error = 0;
      for (let i = -8000; i < 8000; i++) {
        const z = (i + 0.5) / 1000;
        const code = Math.max(-2, Math.min(1, Math.floor(z / step)));
        error += (z - (code + 0.5) * step) ** 2 * Math.exp((-z * z) / 2);
      }
      return error;
    };
    const step = normalStep(2);
    expect(errorOf(step)).toBeLessThan(errorOf(step * 1.01));
    expect(errorOf(step)).toBeLessThan(errorOf(step / 1.01));
  });
});
