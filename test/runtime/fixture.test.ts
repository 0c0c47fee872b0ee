import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { defineScheme, type Scheme, shard, shardPlus, tiltFast, tiltSafe } from '../../dsl/index.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type Activations, loadActivations } from '../../runtime/report/activations.js';
import { type LayerResult, measureLayer } from '../../runtime/report/measure.js';
import { heldOutError } from './heldOut.js';

// Written by scripts/referenceError.ts: the float64 reference's own encoder on the same activations, mean over four seeds.
const own = JSON.parse(readFileSync(packagePath('test', 'fixtures', 'reference-error.json'), 'utf8')) as Record<
  'shard' | 'shard-plus' | 'tilt-fast' | 'tilt-safe',
  Record<string, number>
>;

describe('recorded activations', () => {
  let device: EmulatorDevice;
  let kernels: Readonly<Record<'shard' | 'shardPlus' | 'wider' | 'tilt-fast' | 'tilt-safe', LoadedKernels>>;
  let activations: Activations;
  beforeAll(async () => {
    activations = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
    device = await EmulatorDevice.open({ checks: 'none' });
    const load = async (scheme: Scheme) =>
      LoadedKernels.load(device, await generate(scheme, activations.model, defaultTargets.cuda));
    // One exact token more is worth more bytes than shard-plus' weights and widths: so its bytes are enough for Shard.
    const wider = defineScheme({ ...shard, name: 'shard-wider', window: shard.window + 1 });
    kernels = {
      shard: await load(shard),
      shardPlus: await load(shardPlus),
      wider: await load(wider),
      'tilt-fast': await load(tiltFast),
      'tilt-safe': await load(tiltSafe),
    };
  });
  afterAll(() => device?.close());

  const measure = async (name: keyof typeof kernels, layer: number): Promise<LayerResult> =>
    (await measureLayer(kernels[name], activations.layer(layer))).result;

  it.each([2, 14, 27])(
    'with Shard lose at most 2 % more than with the reference implementation on layer %i, and its bytes are counted',
    async (layer) => {
      const { attentionError, maxError, bytes } = await measure('shard', layer);
      console.info(
        `layer ${layer}: attention error ${attentionError.toFixed(4)}, reference ${own.shard[layer]!.toFixed(4)}`,
      );
      expect(attentionError).toBeLessThanOrEqual(1.02 * own.shard[layer]!);
      expect(maxError).toBeLessThanOrEqual(2e-3);
      expect(bytes).toBe(188416);
    },
  );

  it.each([2, 14, 27])(
    'with shard-plus lose two thirds of what they lose with Shard at most on layer %i, in no more bytes',
    async (layer) => {
      const before = await measure('wider', layer);
      const result = await measure('shardPlus', layer);
      console.info(
        `layer ${layer}: attention error of shard-plus ${result.attentionError.toFixed(4)}, of Shard ${before.attentionError.toFixed(4)}: ${(before.attentionError / result.attentionError).toFixed(2)} times`,
      );
      expect(result.attentionError).toBeLessThanOrEqual(1.02 * own['shard-plus'][layer]!);
      expect(1.5 * result.attentionError).toBeLessThanOrEqual(before.attentionError);
      expect(result.maxError).toBeLessThanOrEqual(2e-3);
      // Weights of channels and widths of groups are 512 bytes beyond Shard's own.
      expect(result.bytes).toBe(188928);
      expect(result.bytes).toBeLessThanOrEqual(before.bytes);
    },
  );

  describe.each([
    // 31 rows of 3 * (3 nibbles * 256 + 1152) bytes, and 67456 of what all tokens share, of exact tokens and padding; the record.
    { name: 'tilt-fast', bytes: 31 * 5760 + 67456 + 256 },
    // 31 rows of 12 nibbles * 256 bytes, 88 bytes of values a token, and 67168 beside; the record.
    { name: 'tilt-safe', bytes: 31 * 3072 + 1980 * 88 + 67168 + 256 },
  ] as const)('with $name', ({ name, bytes }) => {
    it.each([2, 14, 27])(
      'lose at most 2 % more than with the reference implementation on layer %i, and its bytes are counted',
      async (layer) => {
        const result = await measure(name, layer);
        console.info(
          `layer ${layer}: attention error of ${name} ${result.attentionError.toFixed(4)}, reference ${own[name][layer]!.toFixed(4)}`,
        );
        expect(result.attentionError).toBeLessThanOrEqual(1.02 * own[name][layer]!);
        expect(result.maxError).toBeLessThanOrEqual(1e-5);
        expect(result.bytes).toBe(bytes);
      },
    );
  });

  // What the queries that prefill saw tell of those that come after them: on record, and no worse than Shard. Eight
  // queries before the end are few to observe, and eight after it few to judge.
  it.each([2, 14, 27])(
    'with shard-plus lose less than with Shard for queries that follow, on layer %i',
    async (layer) => {
      const judged = 8;
      const before = await heldOutError(kernels.shard, activations.layer(layer), judged);
      const after = await heldOutError(kernels.shardPlus, activations.layer(layer), judged);
      console.info(
        `layer ${layer}: held-out attention error of shard-plus ${after.toFixed(4)}, of Shard ${before.toFixed(4)}: ${(before / after).toFixed(2)} times`,
      );
      expect(after).toBeLessThan(before);
    },
  );
});
