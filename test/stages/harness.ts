import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { layoutSequence, splitPrompt } from '../../codegen/plan/layout.js';
import type { FieldBits, LowRankCodec } from '../../dsl/codec.js';
import { channelMax } from '../../dsl/codecs/channelMax.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { pca, type Rank } from '../../dsl/codecs/pca.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { vq } from '../../dsl/codecs/vq.js';
import { geometryOf, type LowRankGeometry } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, isAllocated, type LowRankScheme } from '../../dsl/scheme.js';
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
  readonly scheme: LowRankScheme;
}

interface CaseParts {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly rank: Rank;
  /** Fixed widths, or a budget for each token's key code. */
  readonly bits: LowRankCodec['bits'];
  readonly weight?: 'none' | 'queries';
  readonly unbiased?: boolean;
  /** All channels if left out. */
  readonly rotaryDim?: number;
  readonly pairing?: 'half' | 'interleaved';
  readonly scoreScale?: number;
  readonly scoreCap?: number;
  readonly group?: 16 | 32 | 64 | 128;
  readonly channels?: 2 | 4 | 8;
  readonly entries?: 16 | 32 | 64 | 128 | 256;
  readonly sinks?: number;
  readonly window?: number;
  readonly streamBits?: 2 | 3 | 4 | 8;
}

export function makeCase(parts: CaseParts): Case {
  const { heads, kvHeads, headDim, rank, bits } = parts;
  const name = nameOf(parts);
  const plain = modelFrom(
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
  const { rotaryDim = headDim, pairing = 'half', scoreScale = plain.scoreScale, scoreCap } = parts;
  const invFreq = Array.from({ length: rotaryDim / 2 }, (_, j) => 10000 ** ((-2 * j) / rotaryDim));
  const rope = { ...plain.rope, rotaryDim, pairing, invFreq };
  const model = {
    ...plain,
    rope,
    kinds: [{ rope }],
    scoreScale,
    ...(scoreCap === undefined ? {} : { scoreCap }),
  };
  const { weight = 'none', unbiased = false, channels = 4, entries = 256 } = parts;
  const scheme = defineScheme({
    name: 'case',
    keys: [unrope(), pca({ rank, bits, group: isAllocated(bits) ? 16 : (parts.group ?? 64), weight })],
    values: [hadamard(), channelMax(), vq({ channels, entries, unbiased })],
    sinks: parts.sinks ?? 4,
    window: parts.window ?? 8,
    stream: lloydMax({ bits: parts.streamBits ?? 8 }),
  });
  return { name, model, scheme };
}

function nameOf(parts: CaseParts): string {
  const { heads, kvHeads, headDim, rank, bits, rotaryDim = headDim, pairing, scoreCap, weight, unbiased } = parts;
  const widths = isAllocated(bits) ? `-b${bits.budget}` : typeof bits === 'number' ? '' : `-${bits.join('')}`;
  const rope = `${rotaryDim < headDim ? `-${rotaryDim}` : ''}${pairing === 'interleaved' ? '-interleaved' : ''}`;
  const rest = [scoreCap ? '-capped' : '', weight === 'queries' ? '-weighted' : '', unbiased ? '-unbiased' : ''];
  return `${heads}-${kvHeads}-${headDim}${rope}-r${rank}${widths}${rest.join('')}`;
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
    const widths = Array.from({ length: Math.ceil(rank / group) }, () => pick<FieldBits>(0, 2, 4, 6, 8));
    const bits = pick<CaseParts['bits']>(widths, { budget: 2 * rank }, { budget: 4 * rank });
    const channels = pick<2 | 4 | 8>(2, 4, 8);
    const rotaryDim = pick(headDim, headDim, headDim / 2, headDim / 4);
    const none = widths.every((width) => width === 0);
    if (rank > kvHeads * headDim || headDim % (channels * 4) !== 0 || none || rotaryDim % 2 !== 0) continue;
    return makeCase({
      heads: kvHeads * pick(1, 2, 3, 5, 6, 8),
      kvHeads,
      headDim,
      rank,
      bits,
      group,
      channels,
      rotaryDim,
      pairing: pick<'half' | 'interleaved'>('half', 'half', 'interleaved'),
      weight: pick<'none' | 'queries'>('none', 'queries'),
      unbiased: pick(false, true),
      scoreScale: pick(1, 0.5, 2) / Math.sqrt(headDim),
      ...(pick(0, 0, 1) === 1 ? { scoreCap: 50 } : {}),
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
 * Geometries of the property tests: two drawn, and five chosen for what they hold together: GQA 3, 4, 5, 7; d 16 to
 * 128; fixed and allocated widths; every stream width; RoPE on all channels or some, in both pairings; capped scores;
 * weighted keys; unbiased values. Few, because each costs a compile.
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
    rotaryDim: 12,
  }),
  makeCase({ heads: 9, kvHeads: 3, headDim: 64, rank: 32, bits: 4, streamBits: 8 }),
  makeCase({
    heads: 7,
    kvHeads: 1,
    headDim: 64,
    rank: 48,
    bits: [8, 6, 2],
    group: 16,
    streamBits: 4,
    pairing: 'interleaved',
    scoreCap: 50,
    weight: 'queries',
  }),
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
    rotaryDim: 40,
    pairing: 'interleaved',
    unbiased: true,
  }),
  makeCase({
    heads: 8,
    kvHeads: 2,
    headDim: 128,
    rank: 80,
    bits: { budget: 192 },
    channels: 8,
    streamBits: 2,
    window: 1,
    weight: 'queries',
    unbiased: true,
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
  const key = JSON.stringify([name, scheme, target]);
  let kernels = generated.get(key);
  if (!kernels) {
    kernels = generate(scheme, model, target);
    generated.set(key, kernels);
  }
  return LoadedKernels.load(device, await kernels, entries);
}

export function geometry({ scheme, model }: Case): LowRankGeometry {
  return geometryOf(scheme, model);
}

export { asFloats, asHalfBits, asWords, type Contents, runKernel } from '../../runtime/verify/run.js';

/** Record, layout and tables of one sequence that has just been given a prompt, alone in its cache buffer. */
export function promptSetting(g: LowRankGeometry, tokens: number, streamCapacity = 0) {
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
  return {
    layout,
    record,
    middle,
    sinks,
    window,
    tables: buildTables(g, tokens + streamCapacity + g.scheme.window, g.model.rope.invFreq),
  };
}

/** The bytes of one named part of a sequence's share. */
export function partBytes(layout: ReturnType<typeof layoutSequence>, share: Uint8Array, name: string): Uint8Array {
  const part = layout.parts.find((candidate) => candidate.name === name)!;
  return share.slice(part.offset, part.offset + part.bytes);
}
