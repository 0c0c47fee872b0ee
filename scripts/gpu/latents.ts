/**
 * Holds the kernels of schemes of latents to float64 and times their attention over 8192 tokens:
 *
 *   node latents.mjs cuda [model] [scheme,scheme] [cases] [sequences,sequences] [splits,splits]
 *
 * Ends with 1 if a case failed.
 */
import { generate } from '../../codegen/generate.js';
import { presetModel } from '../../dsl/index.js';
import { presets } from '../../dsl/schemes/presets.js';
import { attendLaunches } from '../../runtime/attendLaunches.js';
import { promptLengths } from '../../runtime/cache/lengths.js';
import { CacheMemory } from '../../runtime/cache/memory.js';
import type { DeviceBuffer } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { syntheticShare } from '../../runtime/tune/syntheticCache.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { verifyScheme } from '../../runtime/verify/verifyScheme.js';
import { backendOf, countOf } from './openDevice.js';

const [
  deviceName,
  modelName = 'deepseek-v3',
  names = 'latent-int8',
  casesText = '5',
  batches = '1,16',
  splitsText = '',
] = process.argv.slice(2);
const backend = backendOf(deviceName);
const cases = countOf('cases', casesText, 0);
const model = presetModel(modelName);
const device = await backend.open();
const tokens = 8192;
let failed = false;
for (const name of names.split(',')) {
  const scheme = await presets[name]!();
  const generated = await generate(scheme, model, backend.target(device));
  if (cases > 0) {
    const result = await verifyScheme(device, scheme, model, { cases, seed: 1, generated });
    failed ||= result.failed > 0;
    console.log(
      `${name}, ${modelName}: ${result.failed} of ${result.cases} cases failed, errors to ${result.maxError.toExponential(1)}`,
    );
    for (const { what, error, bar } of result.failures.slice(0, 3)) console.log(`  ${what}: ${error} above ${bar}`);
  }
  const kernels = await LoadedKernels.load(device, generated);
  const g = kernels.geometry;
  for (const sequences of batches.split(',').map(Number)) {
    const memory = new CacheMemory(kernels, { sequences, tokens, generated: 0 });
    const lengths = promptLengths(g, tokens);
    const share = syntheticShare(g, memory.layout, lengths, 1);
    for (let sequence = 0; sequence < sequences; sequence++) {
      memory.writeShare(sequence, share);
      memory.writeRecord(sequence, lengths);
    }
    const random = seededRandom(1);
    const query = halfBits(Float64Array.from({ length: sequences * g.heads * g.headDim }, () => normalFrom(random)));
    const usual = sequences === 1 ? [8, 16, 32] : [1, 2, 4];
    for (const splits of splitsText === '' ? usual : splitsText.split(',').map(Number)) {
      const owned: DeviceBuffer[] = [];
      const plan = { sequences, queries: 1, splits };
      const { runs } = attendLaunches(kernels, { ...memory.bindings, query, seen: tokens }, plan, owned);
      const samples = await device.time([runs.flat()], { samples: 7, rounds: 4 });
      const median = [...samples].sort((a, b) => a - b)[3]!;
      const read = (memory.layout.bytes * sequences) / median / 1e3;
      console.log(
        `${name}, ${modelName}, ${sequences} x ${tokens}, ${splits} splits: ${median.toFixed(1)} us, ${read.toFixed(0)} GB/s of the cache`,
      );
      for (const buffer of owned) buffer.release();
    }
    memory.release();
  }
}
await device.close();
process.exitCode = failed ? 1 : 0;
