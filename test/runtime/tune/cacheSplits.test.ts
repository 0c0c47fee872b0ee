import { afterAll, beforeAll, expect, it } from 'vitest';
import { generate } from '../../../codegen/generate.js';
import { promptLengths } from '../../../runtime/cache/lengths.js';
import { KvCache } from '../../../runtime/cache.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { queryBits } from '../../../runtime/tune/cacheBench.js';
import { syntheticShare } from '../../../runtime/tune/syntheticCache.js';
import { targetOf } from '../../stages/harness.js';
import { model, scheme } from '../cacheCase.js';

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none', order: 'ascending' });
});
afterAll(() => device.close());

it('attention over a cache takes the splits that were tuned for shapes like its own', async () => {
  const generated = await generate(scheme, model, targetOf(device));
  const splits = [{ sequences: 1, tokens: 100, splits: 3 }];
  const kernels = await LoadedKernels.load(device, generated, undefined, { splits });
  const blocks: number[] = [];
  const run = device.run.bind(device);
  device.run = (launches) => {
    for (const { kernel, grid } of launches) if (kernel.descriptor.entry === 'attend') blocks.push(grid[0]);
    return run(launches);
  };
  const outputs: Float32Array[] = [];
  // Lengths as tuned, twice as many, and far more; the model has one KV head.
  for (const tokens of [100, 200, 1000]) {
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
    const lengths = promptLengths(cache.geometry, tokens);
    await cache.writeShare(0, syntheticShare(cache.geometry, cache.layout, lengths, 1), lengths);
    const query = queryBits(model.heads * model.headDim);
    outputs.push(await cache.attend(query), await cache.attend(query, { splits: 2 }));
    await cache.release();
  }
  expect(blocks).toEqual([3, 2, 3, 2, 4, 2]);
  for (const output of outputs) expect(output.every(Number.isFinite)).toBe(true);
});
