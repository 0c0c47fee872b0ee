import { describe, expect, test } from 'vitest';
import { layoutSequence } from '../../codegen/plan/layout.js';
import {
  fp8E4M3,
  geometryOf,
  int4,
  int8,
  kivi2,
  latentInt8,
  mix,
  presetModel,
  type Scheme,
  shard,
  shardPlus,
  turboQuant2,
  turboQuant4,
} from '../../dsl/index.js';

const model = presetModel('smollm2-135m');

describe('a mix', () => {
  test('has the keys of one scheme and the values of another', () => {
    const { name, keys, values } = mix({ name: 'k2-v4', keys: kivi2, values: turboQuant4 });
    expect(name).toBe('k2-v4');
    expect(keys).toBe(kivi2.keys);
    expect(values).toBe(turboQuant4.values);
  });

  test('keeps the larger ends of both exact, whichever has them', () => {
    for (const [keys, values] of [
      [kivi2, int4],
      [int4, kivi2],
    ] as const) {
      const { sinks, window } = mix({ name: 'ends', keys, values });
      expect({ sinks, window }).toEqual({ sinks: 4, window: 128 });
    }
  });

  test('codes generated tokens with the stream of more bits, that of the keys where both have as many', () => {
    expect(mix({ name: 'x', keys: int8, values: int4 }).stream).toBe(int8.stream);
    expect(mix({ name: 'x', keys: int4, values: int8 }).stream).toBe(int8.stream);
    expect(mix({ name: 'x', keys: int8, values: fp8E4M3 }).stream).toBe(int8.stream);
    expect(mix({ name: 'x', keys: fp8E4M3, values: int8 }).stream).toBe(fp8E4M3.stream);
  });

  test('takes the bytes of the keys of one and of the values of the other', () => {
    const bytesOf = (scheme: Scheme, parts: RegExp) =>
      layoutSequence(geometryOf(scheme, model), { tokens: 1000, generated: 0 })
        .parts.filter(({ name }) => parts.test(name))
        .reduce((sum, { bytes }) => sum + bytes, 0);
    const mixed = mix({ name: 'x', keys: turboQuant2, values: int8 });
    expect(bytesOf(mixed, /^key/)).toBe(bytesOf(turboQuant2, /^key/));
    expect(bytesOf(mixed, /^value/)).toBe(bytesOf(int8, /^value/));
    // Two bits and an f16 norm a vector; a byte and an f16 scale.
    expect(bytesOf(mixed, /^(key|value)/)).toBe(932 * (3 * 16 + 8) + 932 * (3 * 64 + 8));
  });

  test('of a low-rank scheme with itself is that scheme', () => {
    expect(mix({ name: 'alone', keys: shard, values: shard })).toEqual({ ...shard, name: 'alone' });
  });

  test.each([
    [
      { keys: shard, values: int4 },
      'mix.values: expected shard itself, as low-rank schemes mix only with themselves, got int4',
    ],
    [
      { keys: int4, values: shard },
      'mix.keys: expected shard itself, as low-rank schemes mix only with themselves, got int4',
    ],
    [
      { keys: shard, values: shardPlus },
      'mix.values: expected shard itself, as low-rank schemes mix only with themselves, got shard-plus',
    ],
    [
      { keys: int4, values: latentInt8 },
      'mix.keys: expected latent-int8 itself, as schemes of latents mix only with themselves, got int4',
    ],
    [
      { keys: latentInt8, values: shard },
      'mix.values: expected latent-int8 itself, as schemes of latents mix only with themselves, got shard',
    ],
  ])('refuses what is low-rank, or codes latents, with anything else: %#', (parts, message) => {
    const hint = 'Take both from schemes that code every channel by itself.';
    expect(() => mix({ name: 'x', ...parts } as never)).toThrow(`${message}. ${hint}`);
  });

  test('refuses what is no scheme, and a name that is none', () => {
    expect(() => mix({ name: 'x', keys: null as never, values: int4 as never })).toThrow(
      'scheme: expected an object, got null.',
    );
    expect(() => mix({ name: 'K8 V4', keys: int8, values: int4 })).toThrow(
      'name: expected lower-case letters, digits and hyphens, at most 40, got "K8 V4".',
    );
  });
});
