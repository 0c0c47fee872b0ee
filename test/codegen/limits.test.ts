import { describe, expect, it } from 'vitest';
import { defaultTargets, generate, type TunableChoice } from '../../codegen/generate.js';
import type { Rank } from '../../dsl/codecs/pca.js';
import {
  channelMax,
  defineScheme,
  geometryOf,
  hadamard,
  KvforgeError,
  modelFrom,
  pca,
  presetModel,
  shard,
  type Target,
  unrope,
  vq,
} from '../../dsl/index.js';
import { chooseTunables, excessOf, type KernelPlan } from '../../dsl/stage.js';
import { gramStage } from '../../dsl/stages/gram.js';

const { cuda, wgsl } = defaultTargets;
const smol = presetModel('smollm2-135m');

async function outcome(run: Promise<unknown>): Promise<string> {
  return run.then(
    () => 'GENERATED',
    (error: unknown) => (error instanceof KvforgeError ? `${error.code}: ${error.message}` : String(error)),
  );
}

function model(heads: number, headDim: number) {
  return modelFrom(
    {
      model_type: 'llama',
      hidden_size: heads * headDim,
      num_hidden_layers: 1,
      num_attention_heads: heads,
      num_key_value_heads: heads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    'wide',
  );
}

const scheme = (rank: number, group: 16 | 64 | 128) =>
  defineScheme({
    ...shard,
    name: 'limits',
    keys: [unrope(), pca({ rank: rank as Rank, bits: 4, group })],
    values: [hadamard(), channelMax(), vq({ channels: 4, entries: 16 })],
  });

describe('what the target has no room for', () => {
  it('is refused in every stage, with both numbers', async () => {
    const wide = generate(scheme(2048, 64), model(16, 128), wgsl);
    expect(await outcome(wide)).toBe(
      'does-not-fit: basis: expected a schedule that fits wide on wgsl, got basis_jacobi needs 17408 bytes of shared memory, the device has 16384. Change the scheme, the tunables or the target.',
    );
    expect(await outcome(generate(scheme(2048, 64), model(16, 128), { ...cuda, tensorCores: false }))).toBe(
      'GENERATED',
    );
  });

  it('is refused where a tunable asks for it, and skipped where none does', async () => {
    const at = (choice: TunableChoice) => generate(scheme(128, 128), model(2, 128), wgsl, choice);
    expect(await outcome(at({ decompress: { tileTokens: 16 } }))).toBe(
      'does-not-fit: decompress: expected a schedule that fits wide on wgsl, got decompress needs 16896 bytes of shared memory, the device has 16384. Change the scheme, the tunables or the target.',
    );
    expect(await outcome(at({}))).toBe('GENERATED');
    // The default of gram's tile no longer fits here; its second value does.
    const small = { ...wgsl, workgroupBytes: 4000 };
    expect(chooseTunables(gramStage, geometryOf(shard, smol), wgsl, {})).toMatchObject({ tile: 32 });
    expect(chooseTunables(gramStage, geometryOf(shard, smol), small, {})).toMatchObject({ tile: 16 });
  });

  const plan: KernelPlan = {
    entry: 'k',
    summary: '',
    bindings: [],
    threads: 64,
    grid: [1, 1, 1],
    constants: {},
    functions: {},
    sharedBytes: { fixed: 0, dynamic: 0 },
  };
  const binding = { name: 'b', access: 'read', element: 'u32', holds: '' } as const;
  it.each([
    [wgsl, { threads: 256 }, undefined],
    [wgsl, { threads: 288 }, 'k needs 288 threads a block, wgsl has 256'],
    [cuda, { threads: 1024 }, undefined],
    [cuda, { threads: 1056 }, 'k needs 1056 threads a block, cuda has 1024'],
    [wgsl, { bindings: Array.from({ length: 8 }, () => binding) }, undefined],
    [wgsl, { bindings: Array.from({ length: 9 }, () => binding) }, 'k needs 9 storage buffers, wgsl has 8'],
    [cuda, { bindings: Array.from({ length: 9 }, () => binding) }, undefined],
    [wgsl, { sharedBytes: { fixed: 16388, dynamic: 0 } }, 'k needs 16388 bytes of shared memory, the device has 16384'],
    [cuda, { sharedBytes: { fixed: 49152, dynamic: 0 } }, undefined],
    [
      cuda,
      { sharedBytes: { fixed: 49156, dynamic: 0 } },
      'k needs 49156 bytes of declared shared memory, cuda has 49152',
    ],
    [cuda, { sharedBytes: { fixed: 0, dynamic: 163 * 1024 } }, undefined],
    [
      { ...cuda, arch: 'sm_86' },
      { sharedBytes: { fixed: 16, dynamic: 99 * 1024 } },
      'k needs 101392 bytes of shared memory, the device has 101376',
    ],
  ] as const)('is found in a kernel: %o %o', (target: Target, change: Partial<KernelPlan>, reason) => {
    expect(excessOf({ ...plan, ...change }, target)).toBe(reason);
  });
});

describe('what does not exist is refused', () => {
  it('as a tunable, where the schedule of the target has no use for it', async () => {
    expect(await outcome(generate(shard, smol, wgsl, { attend: { warps: 4 } }))).toBe(
      'wrong-use: attend.warps: expected a tunable of attend: tileTokens, got 4. Leave it out for the default.',
    );
    expect(await outcome(generate(shard, smol, cuda, { attend: { tileTokens: 16 } }))).toBe(
      'wrong-use: attend.tileTokens: expected a tunable of attend: coefficientHalves, warps, basisBytes, got 16. Leave it out for the default.',
    );
  });

  it('as a stage', async () => {
    expect(await outcome(generate(shard, smol, wgsl, { atend: { tileTokens: 8 } }))).toBe(
      'wrong-use: choice.atend: expected a stage of exact, observe, weigh, unrope, gram, basis, allocate, project, values, codebook, unbias, append, copy, decompress, mass, attend, got atend. Name the stage that has the tunable.',
    );
  });

  it.each([
    [
      { ...cuda, arch: 'sm_75' },
      'target.arch: expected one of sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, sm_100, sm_103, sm_110, sm_120, got "sm_75". See the type Target.',
    ],
    [{ ...cuda, arch: 'toString' }, undefined],
    [{ language: 'metal' }, 'target.language: expected cuda or wgsl, got "metal". See the type Target.'],
    [
      { ...wgsl, workgroupBytes: undefined },
      'target.workgroupBytes: expected a whole number of bytes, got undefined. See the type Target.',
    ],
  ])('as a target: %o', async (target, message) => {
    const received = await outcome(generate(shard, smol, target as unknown as Target));
    if (message === undefined) expect(received).toMatch(/^wrong-use: target\.arch/);
    else expect(received).toBe(`wrong-use: ${message}`);
  });
});
