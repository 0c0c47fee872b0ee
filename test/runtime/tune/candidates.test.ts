import { describe, expect, it } from 'vitest';
import { diskAssets } from '../../../codegen/assetsDisk.js';
import { generate } from '../../../codegen/generate.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import type { Target } from '../../../dsl/stage.js';
import { stagesOf } from '../../../dsl/stages/index.js';
import { planSpace, stageContext } from '../../../runtime/tune/candidates.js';
import { tunedStages } from '../../../runtime/tune/tune.js';
import { facts } from './scripted.js';

const shape = { sequences: 4, tokens: 4096 };
const model = presetModel('llama-3.1-8b');
const targets: readonly Target[] = [
  { language: 'cuda', arch: 'sm_80', tensorCores: true },
  { language: 'cuda', arch: 'sm_90a', tensorCores: true },
  { language: 'cuda', arch: 'sm_80', tensorCores: false },
  { language: 'wgsl', f16: true, subgroups: true, workgroupBytes: 32768 },
];

describe.each(targets)('for %j', (target) => {
  it.each([shard, shardPlus])('every stage of $name has candidates with predictions', async (scheme) => {
    const context = await stageContext(diskAssets, scheme, model, target);
    for (const name of tunedStages) {
      const stage = stagesOf['low-rank'].find((each) => each.name === name);
      if (!stage) continue;
      const { candidates } = await planSpace(context, stage, shape, facts, true);
      // Grids name sizes that the plan has to know: one that it lacks throws.
      for (const { predicted } of candidates) expect(predicted).toBeGreaterThan(0);
      expect(new Set(candidates.map(({ source }) => source)).size).toBe(
        new Set(candidates.map(({ tunables }) => JSON.stringify(tunables))).size,
      );
      if (candidates.length === 0) continue;
      const { manifest } = await generate(scheme, model, target);
      const chosen = manifest.kernels.find((kernel) => kernel.stage === name)!.tunables;
      expect(candidates[0]!.tunables).toEqual(chosen);
    }
  });
});

it('has no predictions for a device whose multiprocessors are not known', async () => {
  const context = await stageContext(diskAssets, shard, model, targets[0]!);
  const stage = stagesOf['low-rank'].find(({ name }) => name === 'values')!;
  const { multiprocessors: _, ...others } = facts;
  const { candidates } = await planSpace(context, stage, shape, others, true);
  expect(candidates.length).toBeGreaterThan(1);
  expect(candidates.every(({ predicted }) => predicted === undefined)).toBe(true);
});
