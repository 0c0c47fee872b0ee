import { type GeneratedKernels, generate } from '../../codegen/generate.js';

import { layoutSequence, splitPrompt } from '../../codegen/plan/layout.js';
import type { FieldBits } from '../../dsl/codec.js';
import { channelMax } from '../../dsl/codecs/channelMax.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { pca, type Rank } from '../../dsl/codecs/pca.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { vq } from '../../dsl/codecs/vq.js';
import { type Geometry, geometryOf } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, type Scheme } from '../../dsl/scheme.js';
import type { Target } from '../../dsl/stage.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { writeRecord } from '../../runtime/record.js';
import { seededRandom } from '../../runtime/reference/index.js';
import { buildTables } from '../../runtime/tables.js';
import { WebGpuDevice } from '../../runtime/webgpu/webgpu.js';

/** One geometry; the data and lengths are drawn by the hundred. */
export interface Case {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: Scheme;
}

interface CaseParts {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly rank: Rank;
  readonly bits: FieldBits | readonly FieldBits[];
  readonly group?: 16 | 32 | 64 | 128;
  readonly channels?: 2 | 4 | 8;
  readonly entries?: 16 | 32 | 64 | 128 | 256;
  readonly sinks?: number;
  readonly window?: number;
  readonly streamBits?: 2 | 3 | 4 | 8;
}

export function makeCase(parts: CaseParts): Case {
  const { heads, kvHeads, headDim, rank, bits } = parts;
  const widths = typeof bits === 'number' ? '' : `-${bits.join('')}`;
  const name = `${heads}-${kvHeads}-${headDim}-r${rank}${widths}`;
  const model = modelFrom(
    {
      model_type: 'llama',
      hidden_size: heads * headDim,
      num_hidden_layers: 1,
      num_attention_heads: heads,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    name,
  );
  const scheme = defineScheme({
    name: `case-${name}`,
    keys: [unrope(), pca({ rank, bits, group: parts.group ?? 64 })],
    values: [hadamard(), channelMax(), vq({ channels: parts.channels ?? 4, entries: parts.entries ?? 256 })],
    sinks: parts.sinks ?? 4,
    window: parts.window ?? 8,
    stream: lloydMax({ bits: parts.streamBits ?? 8 }),
  });
  return { name, model, scheme };
}

/** A drawn geometry: every size from its list, drawn again until they fit together. The same seed gives the same one. */
export function drawCase(seed: number): Case {
  const random = seededRandom(seed);
  const pick = <T>(...values: readonly T[]): T => values[Math.floor(random() * values.length)]!;
  for (;;) {
    const kvHeads = pick(1, 2, 3);
    const headDim = pick(16, 32, 48, 64, 80, 96);
    const group = pick(16, 32, 64);
    const rank = pick<Rank>(16, 32, 48, 64);
    const bits = Array.from({ length: Math.ceil(rank / group) }, () => pick<FieldBits>(0, 2, 4, 6, 8));
    const channels = pick<2 | 4 | 8>(2, 4, 8);
    if (rank > kvHeads * headDim || headDim % (channels * 4) !== 0 || bits.every((width) => width === 0)) continue;
    return makeCase({
      heads: kvHeads * pick(1, 2, 3, 5, 6, 8),
      kvHeads,
      headDim,
      rank,
      bits,
      group,
      channels,
      entries: pick<16 | 32 | 64 | 128 | 256>(16, 32, 64, 128, 256),
      sinks: pick(0, 1, 4, 7),
      window: pick(1, 5, 8, 17),
      streamBits: pick<2 | 3 | 4 | 8>(2, 3, 4, 8),
    });
  }
}

/** Change it to meet other geometries: `KVFORGE_SEED=7 npx vitest run test/stages`. */
const seed = Number(process.env.KVFORGE_SEED ?? 20261201);

/**
 * Geometries of the property tests: two drawn, and five chosen for what they hold together: GQA 1, 3, 4, 5, 7; d 16 to
 * 128; mixed widths; every stream width. Few, because each costs a compile.
 */
export const cases: readonly Case[] = [
  makeCase({
    heads: 3,
    kvHeads: 1,
    headDim: 16,
    rank: 16,
    bits: 4,
    group: 16,
    channels: 4,
    entries: 16,
    streamBits: 3,
  }),
  makeCase({ heads: 9, kvHeads: 3, headDim: 64, rank: 32, bits: 4, streamBits: 8 }),
  makeCase({ heads: 7, kvHeads: 1, headDim: 64, rank: 48, bits: [8, 6, 2], group: 16, streamBits: 4 }),
  makeCase({
    heads: 10,
    kvHeads: 2,
    headDim: 80,
    rank: 64,
    bits: [6, 0],
    group: 32,
    entries: 64,
    streamBits: 3,
    sinks: 0,
  }),
  makeCase({
    heads: 8,
    kvHeads: 2,
    headDim: 128,
    rank: 80,
    bits: [4, 2],
    group: 64,
    channels: 8,
    streamBits: 2,
    window: 1,
  }),
  drawCase(seed),
  drawCase(seed + 1),
];

export type DeviceName = 'emulator' | 'webgpu';
export const deviceNames: readonly DeviceName[] = ['emulator', 'webgpu'];

/** The device under test, poisoned memory and full checks on. */
export async function openDevice(name: DeviceName): Promise<Device> {
  return name === 'emulator'
    ? EmulatorDevice.open({ checks: 'full', order: 'shuffled' })
    : WebGpuDevice.open({ adapter: 'software', poison: true });
}

export function targetOf(
  device: Device,
  override: Partial<{ tensorCores: boolean; f16: boolean; subgroups: boolean }> = {},
): Target {
  return device.target === 'cuda'
    ? { language: 'cuda', arch: 'sm_80', tensorCores: override.tensorCores ?? false }
    : {
        language: 'wgsl',
        f16: override.f16 ?? false,
        subgroups: override.subgroups ?? false,
        workgroupBytes: 16384,
      };
}

const generated = new Map<string, Promise<GeneratedKernels>>();

export async function load(
  device: Device,
  { name, model, scheme }: Case,
  entries: readonly string[],
  target: Target = targetOf(device),
): Promise<LoadedKernels> {
  const key = JSON.stringify([name, scheme.name, target]);
  let kernels = generated.get(key);
  if (!kernels) {
    kernels = generate(scheme, model, target);
    generated.set(key, kernels);
  }
  return LoadedKernels.load(device, await kernels, entries);
}

export function geometry({ scheme, model }: Case): Geometry {
  return geometryOf(scheme, model);
}

export { asFloats, asHalfBits, asWords, type Contents, runKernel } from '../../runtime/verify/run.js';

/** Record, layout and tables of one sequence that has just been given a prompt, alone in its cache buffer. */
export function promptSetting(g: Geometry, tokens: number, streamCapacity = 0) {
  const layout = layoutSequence(g, { tokens, generated: streamCapacity });
  const { sinks, middle, window } = splitPrompt(g, tokens);
  const record = writeRecord(layout, 0, {
    sinkTokens: sinks,
    middleTokens: middle,
    streamTokens: 0,
    windowTokens: window,
    windowStart: 0,
    promptTokens: tokens,
  });
  return { layout, record, middle, sinks, window, tables: buildTables(g, tokens + streamCapacity + g.scheme.window) };
}

/** The bytes of one named part of a sequence's share. */
export function partBytes(layout: ReturnType<typeof layoutSequence>, share: Uint8Array, name: string): Uint8Array {
  const part = layout.parts.find((candidate) => candidate.name === name)!;
  return share.slice(part.offset, part.offset + part.bytes);
}
