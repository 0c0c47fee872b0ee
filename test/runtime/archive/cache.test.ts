import { afterAll, beforeAll, expect, test } from 'vitest';
import { defaultTargets, generate } from '../../../codegen/generate.js';
import { int8, kivi4, type Scheme } from '../../../dsl/index.js';
import { modelFrom } from '../../../dsl/model.js';
import { packArchive } from '../../../runtime/archive/pack.js';
import { numbersOf } from '../../../runtime/archive/rows.js';
import { unpackArchive } from '../../../runtime/archive/unpack.js';
import { KvCache } from '../../../runtime/cache.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { outputDifference } from '../../../runtime/reference/index.js';
import { config, correlated } from './case.js';

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
});
afterAll(() => device?.close());

const model = modelFrom({ ...config, head_dim: 32 }, 'wider');

// Eight bits of a cache, and four with scales by channel: about a hundredth and a tenth of what numbers vary.
const schemes: readonly { readonly scheme: Scheme; readonly bound: number }[] = [
  { scheme: int8, bound: 0.02 },
  { scheme: kivi4, bound: 0.2 },
];
test.each(schemes)('what is read back goes into a cache of any scheme: $scheme.name', async ({ scheme, bound }) => {
  const input = correlated(200, [2], { model });
  const [layer] = unpackArchive(packArchive(input, { bytesPerToken: 120 }), { model }).layers;
  const kernels = await LoadedKernels.load(device, await generate(scheme, model, defaultTargets.cuda));
  const cache = KvCache.open(kernels, { sequences: 1, tokens: 200, generated: 0, layer: layer!.layer });
  await cache.prefill(0, layer!);
  const decoded = await cache.decompress(0);
  for (const operand of ['keys', 'values'] as const) {
    const [exact, read, held] = [input.layers[0]![operand], layer![operand], decoded[operand]].map(numbersOf);
    const { error } = outputDifference(read!, held!);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(bound);
    // The cache's own error comes on top of the archive's.
    const [alone, both] = [outputDifference(exact!, read!).error, outputDifference(exact!, held!).error];
    expect(both).toBeLessThan(1.1 * Math.hypot(alone, error));
  }
  await cache.release();
});
