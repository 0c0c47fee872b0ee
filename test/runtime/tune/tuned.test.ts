import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type TuneOptions, type TuneTools, tuneCommand } from '../../../cli/tune.js';
import { diskAssets } from '../../../codegen/assetsDisk.js';
import { defaultTargets } from '../../../codegen/generate.js';
import { stageKernels } from '../../../codegen/stageKernels.js';
import { KvforgeError } from '../../../dsl/errors.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { stagesOf } from '../../../dsl/stages/index.js';
import { sourceHash, stageContext } from '../../../runtime/tune/candidates.js';
import type { Measurer, Outcome } from '../../../runtime/tune/child.js';
import { readLock } from '../../../runtime/tune/lock/file.js';
import { readTuned } from '../../../runtime/tune/lock/tuned.js';
import type { Variant } from '../../../runtime/tune/protocol.js';
import { TimingStore } from '../../../runtime/tune/store.js';
import { tune } from '../../../runtime/tune/tune.js';
import { quietContext } from '../../cli/support.js';
import { facts, measured, temporaryFolder } from './scripted.js';

const model = presetModel('smollm2-135m');
const target = defaultTargets.cuda;
const stageOf = (name: string) => stagesOf['low-rank'].find((stage) => stage.name === name)!;

function scripted(outcomeOf: (variant: Variant) => Outcome): TuneTools {
  const measurer: Measurer = {
    facts: async () => ({ ...facts, architecture: 'sm_80' }),
    ask: async (request) => {
      if (request.type === 'measure') return outcomeOf(request.variant);
      if (request.type === 'compile') return { type: 'compiled' };
      return { type: 'repeated', samples: request.variants.map(() => [50, 50, 50]) };
    },
    close: async () => {},
  };
  const folder = temporaryFolder();
  return { measurer: () => measurer, folder: async () => folder };
}

const options = (parts: Partial<TuneOptions> = {}): TuneOptions => ({
  model: model.name,
  device: 'cuda',
  stages: 'attend',
  shapes: '1x512',
  budget: '60',
  limit: '60',
  lockfile: join(temporaryFolder(), 'kvforge.lock.json'),
  ...parts,
});

describe('texts', () => {
  const shuffled = [
    { coefficientHalves: 1, warps: 8, basisBytes: 2 },
    { basisBytes: 2, coefficientHalves: 1, warps: 8 },
    { warps: 8, basisBytes: 2, coefficientHalves: 1 },
    { warps: 8, coefficientHalves: 1, basisBytes: 2 },
  ];

  it('name tunables in the order of their declaration, in whatever order they come', async () => {
    const attend = stageOf('attend');
    expect(Object.keys(attend.tunables(target))).toEqual(['coefficientHalves', 'warps', 'basisBytes']);
    const context = await stageContext(diskAssets, shard, model, target);
    for (const tunables of shuffled) {
      for (const { source, descriptor } of stageKernels(context, attend, tunables)) {
        expect(source).toContain('// tunables: coefficientHalves = 1, warps = 8, basisBytes = 2\n');
        expect(Object.entries(descriptor.tunables)).toEqual(Object.entries(shuffled[0]!));
      }
    }
    const hashes = await Promise.all(shuffled.map((tunables) => sourceHash(context, attend, tunables)));
    expect(new Set(hashes).size).toBe(1);
  });
});

describe('what was just tuned', () => {
  it('has not changed since, though the lock file sorts the names of its tunables', async () => {
    const given = options();
    const tools = scripted(({ tunables }) => measured(tunables.warps === 2 ? 20 : 40));
    expect((await tuneCommand(quietContext(), 'shard', given, tools)).code).toBe(0);
    const [entry] = (await readLock(given.lockfile))!;
    expect(Object.keys(entry!.tunables)).toEqual(['basisBytes', 'coefficientHalves', 'warps']);
    expect(entry!.tunables.warps).toBe(2);
    const tuned = (await readTuned(given.lockfile, { scheme: shard, model, target }))!;
    expect(tuned.entries).toHaveLength(1);
    expect(tuned.changed).toEqual([]);
  });
});

describe('a run', () => {
  const failure = {
    ...{ code: 'missing-capability', at: 'nvrtc', expected: 'NVRTC, which compiles CUDA text' },
    ...{ received: 'no library', hint: 'Install it.' },
  };

  it('without what compiles ends with that error, and takes all times once it is there', async () => {
    const given = options({ stages: 'decompress' });
    let installed = false;
    const tools = scripted(() => (installed ? measured(50) : { type: 'failed', failure }));
    const error = await tuneCommand(quietContext(), 'shard', given, tools).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(KvforgeError);
    expect(error).toMatchObject({
      code: 'missing-capability',
      message: 'nvrtc: expected NVRTC, which compiles CUDA text, got no library. Install it.',
    });
    installed = true;
    const { code, json } = await tuneCommand(quietContext(), 'shard', given, tools);
    expect(code).toBe(0);
    expect((json as { shapes: unknown[] }).shapes).toMatchObject([{ tried: 2, failed: 0 }]);
  });

  it.each([
    ['unbias', 'wgsl', 'unbias 1x512: nothing to search: shard on smollm2-135m has no kernels of this stage'],
    ['project', 'cuda', 'project 1x512: nothing to search: it has one configuration, tileTokens 64'],
  ])('says why there is nothing to search for %s', async (stage, language, line) => {
    const lines: string[] = [];
    const device = language === 'cuda' ? 'cuda' : 'webgpu';
    await tuneCommand(
      quietContext(lines),
      'shard',
      options({ stages: stage, device }),
      scripted(() => measured(50)),
    );
    expect(lines.slice(1)).toEqual([line]);
  });

  it('without time for anything says to raise the budget', async () => {
    const lines: string[] = [];
    const tools = scripted(() => measured(50));
    const request = {
      ...{ scheme: shard, model, target, stages: ['decompress'], shapes: [{ sequences: 1, tokens: 512 }] },
      ...{ budgetMs: 0, candidateMs: 1000, retry: false, exhaustive: false, tradeAccuracy: false, compileAhead: 1 },
    };
    const found = await tune(request, {
      ...{ assets: diskAssets, facts, measurer: tools.measurer({ scheme: '', model: '', device: '' }) },
      ...{ store: new TimingStore(await tools.folder()), now: () => 0, progress: (line) => void lines.push(line) },
    });
    expect(lines).toEqual(['decompress 1x512: the budget ran out before the first time; raise --budget']);
    expect(found).toMatchObject([{ stage: 'decompress', tried: 0, left: 2 }]);
  });

  it('says why one configuration is left of several', async () => {
    const lines: string[] = [];
    await tuneCommand(
      quietContext(lines),
      'shard',
      options({ stages: 'basis', model: 'gemma-2-9b' }),
      scripted(() => measured(50)),
    );
    expect(lines.slice(1)).toEqual([
      'basis 1x512: nothing to search: of its configurations only choleskyQr 0, sharedMatrix 0 can be (choleskyQr 1, sharedMatrix 1: rank 384 is above 192, the most that basis_factor keeps in registers)',
    ]);
  });
});
