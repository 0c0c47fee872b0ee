import { generate, defaultTargets } from '../codegen/generate.js';
import { EmulatorDevice } from '../runtime/emulator/emulator.js';
import { WebGpuDevice } from '../runtime/webgpu/webgpu.js';
import { LoadedKernels } from '../runtime/kernels.js';
import { drawCase } from '../runtime/verify/caseDraws.js';
import { Judge } from '../runtime/verify/judge.js';
import { prefillCase } from '../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../runtime/verify/tap.js';
import { makeCase } from '../test/stages/harness.js';
const [which, n] = [process.argv[2], Number(process.argv[3])];
const base = which === 'webgpu' ? await WebGpuDevice.open({ adapter: 'software', poison: true }) : await EmulatorDevice.open({ checks: 'full' });
const cs = [
  makeCase({ heads: 6, kvHeads: 2, headDim: 32, rank: 32, bits: { budget: 96 }, weight: 'queries', unbiased: true, scoreCap: 50 }),
  makeCase({ heads: 3, kvHeads: 3, headDim: 64, rank: 32, bits: { budget: 128 }, weight: 'queries', unbiased: true }),
];
for (const c0 of cs) for (const sliding of [0, 24]) {
  const kind = c0.model.kinds[0]!;
  const c = { ...c0, model: { ...c0.model, kinds: [sliding ? { ...kind, slidingWindow: sliding } : kind] } };
  const tap = new Tap(base, { bindings: promptTaps, apart: false });
  const kernels = await LoadedKernels.load(tap, await generate(c.scheme, c.model, defaultTargets[base.target]));
  let [done, bad] = [0, 0];
  for (let seed = 1; done < n; seed++) {
    const drawn = drawCase(kernels.geometry, seed, 40);
    if (drawn.kind !== 'prefill') continue;
    done++;
    const judge = new Judge();
    await prefillCase(kernels, tap, drawn.draw, { judge, bar: 2e-3, halves: true });
    if (judge.failures.length) { bad++; console.log(c.name, sliding, seed, JSON.stringify(drawn.draw), JSON.stringify(judge.failures.slice(0, 4))); }
  }
  console.log(c.name, sliding, done, 'bad', bad);
}
await base.close();
