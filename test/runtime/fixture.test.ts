import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { shard } from '../../dsl/index.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type Activations, loadActivations } from '../../runtime/report/activations.js';
import { measureLayer } from '../../runtime/report/measure.js';

// Written by scripts/referenceError.ts: the float64 reference's own encoder on the same activations, mean over four seeds.
const own = JSON.parse(readFileSync(packagePath('test', 'fixtures', 'reference-error.json'), 'utf8')) as Record<
  string,
  number
>;

describe('Shard on recorded activations', () => {
  let device: EmulatorDevice;
  let kernels: LoadedKernels;
  let activations: Activations;
  beforeAll(async () => {
    activations = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
    device = await EmulatorDevice.open({ checks: 'none' });
    kernels = await LoadedKernels.load(device, await generate(shard, activations.model, defaultTargets.cuda));
  });
  afterAll(() => device?.close());

  it.each([2, 14, 27])(
    'loses at most 2 % more than the reference implementation on layer %i, and counts its bytes',
    async (layer) => {
      const { result } = await measureLayer(kernels, activations.layer(layer));
      console.info(
        `layer ${layer}: attention error ${result.attentionError.toFixed(4)}, reference ${own[layer]!.toFixed(4)}`,
      );
      expect(result.attentionError).toBeLessThanOrEqual(1.02 * own[layer]!);
      expect(result.maxError).toBeLessThanOrEqual(2e-3);
      expect(result.bytes).toBe(188416);
    },
  );
});
