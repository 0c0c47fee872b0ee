import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { frequenciesFor, type ModelShape, modelFrom } from '../../dsl/model.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { parseSafetensors } from '../../runtime/safetensors.js';
import { halfBits, halfValues } from '../../runtime/verify/draws.js';
import { targetOf } from '../stages/harness.js';
import { faultOf, halves, scheme } from './cacheCase.js';

const config = {
  model_type: 'llama',
  hidden_size: 32,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 16,
  rope_theta: 10000,
  max_position_embeddings: 100,
};
const dynamic = modelFrom({ ...config, rope_scaling: { type: 'dynamic', factor: 2.505 } }, 'dynamic');
const longrope = modelFrom(
  {
    ...config,
    model_type: 'phi3',
    max_position_embeddings: 250,
    original_max_position_embeddings: 100,
    rope_scaling: { type: 'longrope', short_factor: Array(8).fill(1), long_factor: Array(8).fill(2) },
  },
  'long',
);

let device: Device;
beforeAll(async () => {
  device = await EmulatorDevice.open();
});
afterAll(() => device?.close());

const load = async (model: ModelShape) => LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
const hint = (tokens: number) => `The RoPE of this layer depends on the length: open the cache with tokens: ${tokens}.`;

test('dynamic NTK lets sequences outgrow the original context by its factor, rounded down', () => {
  expect(dynamic.maxPositions).toBe(250);
  expect(dynamic.rope.scaling).toMatchObject({ originalMaxPositions: 100 });
  const far = modelFrom({ ...config, max_position_embeddings: 2 ** 23, rope_scaling: { type: 'dynamic', factor: 8 } });
  expect(far.maxPositions).toBe(2 ** 24);
  expect(modelFrom({ ...config, rope_scaling: { type: 'linear', factor: 4 } }).maxPositions).toBe(100);
  // A window hides something of a sequence that is longer than it.
  const sliding = (window: number) =>
    modelFrom({
      ...config,
      model_type: 'mistral',
      sliding_window: window,
      rope_scaling: { type: 'dynamic', factor: 2 },
    }).kinds[0]!.slidingWindow;
  expect([sliding(150), sliding(200)]).toEqual([150, undefined]);
});

test('a cache of a dynamic model is filled beyond the original context', async () => {
  const kernels = await load(dynamic);
  expect(() => KvCache.open(kernels, { sequences: 1, tokens: 250, generated: 1 })).toThrow(
    'tokens: expected at most 250 tokens, prompt and generated (the positions of dynamic), got 251. Lower the capacity, or give the model its longer context in config.json.',
  );
  const [tokens, more] = [240, 10];
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: more });
  expect(cache.rotation.invFreq).toEqual(frequenciesFor(dynamic.rope, tokens));
  // Two and a half times as long, less one and a half: the base has grown.
  const stretch = (2.505 * tokens) / 100 - 1.505;
  expect(cache.rotation.invFreq[7]).toBeCloseTo(1 / (10000 * stretch ** (16 / 14)) ** (14 / 16), 15);
  // Keys of one direction before RoPE, with the frequencies of the whole prompt: only with them are they all alike.
  const keys = turned(cache.rotation.invFreq, tokens + more);
  const bits = halves(tokens * 16, 2);
  await cache.prefill(0, { keys: keys.slice(0, tokens * 16), values: bits, tokens });
  await cache.append(keys.slice(tokens * 16), bits.slice(0, more * 16), { tokens: more });
  const decoded = halfValues((await cache.decompress(0)).keys);
  const exact = halfValues(keys);
  const worst = (first: number, end: number) =>
    Math.max(
      ...Array.from({ length: (end - first) * 16 }, (_, i) =>
        Math.abs(decoded[first * 16 + i]! - exact[first * 16 + i]!),
      ),
    );
  expect(worst(0, tokens - scheme.window)).toBeLessThan(2e-3);
  expect(worst(tokens + more - scheme.window, tokens + more)).toBe(0);
  expect((await cache.attend(halves(2 * 16, 3))).every(Number.isFinite)).toBe(true);
  await cache.release();
});

describe('a file loads only where the frequencies are the same', () => {
  const saved = async (kernels: LoadedKernels, tokens: number) => {
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
    await cache.prefill(0, { keys: halves(9 * 16, 4), values: halves(9 * 16, 5), tokens: 9 });
    const file = await cache.save();
    await cache.release();
    return file;
  };
  const loaded = async (kernels: LoadedKernels, tokens: number, file: Uint8Array) => {
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
    const fault = await faultOf(cache.load(file));
    await cache.release();
    return fault;
  };

  test('with dynamic NTK', async () => {
    const kernels = await load(dynamic);
    const file = await saved(kernels, 200);
    const { about } = JSON.parse(parseSafetensors(file).metadata.get('identity')!);
    expect(about).toEqual({ scheme: 'quick', model: 'dynamic', frequencyTokens: 200 });
    const frequency = (tokens: number) => Number(frequenciesFor(dynamic.rope, tokens)[1]!.toPrecision(13));
    expect(await loaded(kernels, 200, file)).toBe('no error');
    expect(await loaded(kernels, 240, file)).toBe(
      `cache file, layer.rope.frequencies[1]: expected ${frequency(240)} (of this cache, for prompts of 240 tokens), got ${frequency(200)} (for prompts of 200 tokens). ${hint(200)}`,
    );
    const short = await saved(kernels, 60);
    expect(await loaded(kernels, 90, short)).toBe('no error');
  });

  test('with longrope', async () => {
    const kernels = await load(longrope);
    const file = await saved(kernels, 100);
    expect(await loaded(kernels, 80, file)).toBe('no error');
    expect(await loaded(kernels, 101, file)).toBe(
      `cache file, layer.rope.frequencies[0]: expected 0.5 (of this cache, for prompts of 101 tokens), got 1 (for prompts of 100 tokens). ${hint(100)}`,
    );
    expect(await loaded(kernels, 250, await saved(kernels, 101))).toBe('no error');
  });
});

/** f16 bits of keys [tokens][16] that are one and the same before RoPE. */
function turned(frequencies: readonly number[], tokens: number): Uint16Array {
  const keys = new Float64Array(tokens * 16);
  for (let token = 0; token < tokens; token++) {
    for (const [pair, frequency] of frequencies.entries()) {
      const angle = token * frequency;
      keys.set([Math.cos(angle)], token * 16 + pair);
      keys.set([Math.sin(angle)], token * 16 + 8 + pair);
    }
  }
  return halfBits(keys);
}
