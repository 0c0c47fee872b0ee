import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../../codegen/generate.js';
import { layoutSequence, recordBytes } from '../../../codegen/plan/layout.js';
import {
  geometryOf,
  int2Hadamard,
  int4,
  int8,
  kvquant3,
  mix,
  type ScalarScheme,
  turboQuant3,
} from '../../../dsl/index.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { leastBytesPerToken, type MixSearch, searchMix } from '../../../runtime/mix/search.js';
import { type Activations, loadActivations } from '../../../runtime/report/activations.js';
import { measureLayer } from '../../../runtime/report/measure.js';
import { model, recording, tokens } from './recording.js';

let activations: Activations;
beforeAll(async () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-mix-test-'));
  writeFileSync(join(folder, 'recorded.safetensors'), recording());
  activations = await loadActivations(join(folder, 'recorded.safetensors'), model);
  rmSync(folder, { recursive: true });
});

const quiet = () => {};
const search = (candidates: readonly ScalarScheme[], budgets: readonly number[]): MixSearch =>
  searchMix({ model, layers: activations.layers, load: activations.layer, candidates, budgets, progress: quiet });

describe('the search for a mix', () => {
  test('finds in each budget what trying every assignment finds', () => {
    const candidates = [int8, turboQuant3, int2Hadamard].map((scheme) => ({ ...scheme, window: 8 }));
    const budgets = [20, 47, 50, 56, 62, 200];
    const { mixes, uniform, exact } = search(candidates, budgets);
    expect(exact).toBe(true);
    const layers = activations.layers.map((layer, at) =>
      candidates.flatMap((keys, i) =>
        candidates.map((values, j) => ({
          keys,
          values,
          bytes:
            layoutSequence(geometryOf(mix({ name: 'x', keys, values }), model), { tokens, generated: 0 }).bytes +
            recordBytes,
          error: uniform[i]!.alone.layers[at]!.keysError ** 2 + uniform[j]!.alone.layers[at]!.valuesError ** 2,
          layer,
        })),
      ),
    );
    for (const [index, budget] of budgets.entries()) {
      const [first, second, third] = layers as [(typeof layers)[0], (typeof layers)[0], (typeof layers)[0]];
      let best: { error: number; chosen: string[] } | undefined;
      for (const a of first) {
        for (const b of second) {
          for (const c of third) {
            if (a.bytes + b.bytes + c.bytes > budget * tokens * 3) continue;
            const error = a.error + b.error + c.error;
            if (best !== undefined && error >= best.error) continue;
            best = { error, chosen: [a, b, c].map(({ keys, values }) => `${keys.name} ${values.name}`) };
          }
        }
      }
      const found = mixes[index];
      expect(found?.layers.map(({ keys, values }) => `${keys.name} ${values.name}`)).toEqual(best?.chosen);
      if (found === undefined) continue;
      expect(found.predicted).toBeCloseTo(Math.sqrt(best!.error / 3), 12);
      expect(found.bytesPerToken).toBeLessThanOrEqual(budget);
    }
    // Too few bytes, some for which layers differ, and enough for all.
    const names = mixes.map((found) => found?.layers.map(({ keys, values }) => `${keys.name} ${values.name}`).join());
    expect(new Set(names).size).toBe(budgets.length);
  });

  test('says that a budget is too small, and what the least is', () => {
    const candidates = [int8, int2Hadamard];
    const { mixes, uniform } = search(candidates, [10]);
    expect(mixes).toEqual([undefined]);
    const least = leastBytesPerToken({ model, layers: activations.layers, load: activations.layer, candidates });
    expect(least).toBe(uniform[1]!.alone.bytesPerToken);
  });

  test('puts beside every candidate a mix that takes no more bytes and is predicted to lose no more', () => {
    const { uniform } = search([int8, int4, turboQuant3], []);
    for (const { alone, mix: mixed } of uniform) {
      expect(mixed.bytes).toBeLessThanOrEqual(alone.bytes);
      expect(mixed.predicted).toBeLessThanOrEqual(alone.predicted);
    }
  });

  test('gives all candidates the largest ends of any', () => {
    const { sinks, window, uniform } = search([int8, { ...int4, sinks: 0, window: 128 }], []);
    expect({ sinks, window }).toEqual({ sinks: 4, window: 128 });
    // All 110 tokens lie in the sinks and the window: nothing is lost.
    for (const { alone } of uniform) expect(alone.together).toBe(0);
  });

  test('refuses a codec that reads back what is no number', () => {
    const [quantizer] = int8.keys as readonly [Extract<(typeof int8.keys)[number], { kind: 'quantizer' }>];
    const codec = { ...quantizer.codec, device: { ...quantizer.codec.device, value: () => Number.NaN } };
    const broken = { ...int8, name: 'broken', values: [{ ...quantizer, codec }] as const };
    expect(() => search([int8, broken], [100])).toThrow(
      'broken.values: expected codes that finite numbers are read back from, in layer 0, got an attention error of NaN. Hold the codec to the reference with kvforge verify.',
    );
  });

  test.each([int2Hadamard, { ...kvquant3, window: 20 }])(
    'measures what kernels of a mix with $name lose',
    async (keys) => {
      const scheme = mix({ name: 'mixed', keys, values: { ...turboQuant3, window: 20 } });
      const device = await EmulatorDevice.open({ checks: 'none' });
      try {
        const target = { language: 'cuda', arch: 'sm_80', tensorCores: false } as const;
        const kernels = await LoadedKernels.load(device, await generate(scheme, model, target));
        const { result } = await measureLayer(kernels, activations.layer(1));
        const { uniform } = search([scheme], []);
        const found = uniform[0]!.alone.layers[1]!;
        // The codes are the same unless a number lies within float32's rounding of the middle between two.
        expect(found.keysError).toBeCloseTo(result.keysOnlyError, 6);
        expect(found.valuesError).toBeCloseTo(result.valuesOnlyError, 6);
        expect(found.together).toBeCloseTo(result.attentionError, 6);
        expect(found.keysError).toBeGreaterThan(0.01);
      } finally {
        await device.close();
      }
    },
    120_000,
  );
});
