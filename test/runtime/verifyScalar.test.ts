import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defaultTargets, type GeneratedKernels, generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import {
  asymmetric,
  defineScheme,
  float8,
  hadamard,
  lloydMax,
  modelFrom,
  perChannel,
  perHead,
  perToken,
  symmetric,
  unrope,
} from '../../dsl/index.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import type { Device } from '../../runtime/device.js';
import { drawCase } from '../../runtime/verify/caseDraws.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { type DeviceName, deviceNames, openDevice } from '../stages/harness.js';

/** Two query heads on each of three KV heads of 48 channels: rows of scales and of 3-bit fields end within a word. */
const narrow = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 96,
    num_hidden_layers: 1,
    num_attention_heads: 6,
    num_key_value_heads: 3,
    head_dim: 48,
    rope_theta: 10000,
    max_position_embeddings: 4096,
  },
  'narrow',
);
const stream = lloydMax({ bits: 4 });
const blocks = defineScheme({
  name: 'blocks',
  keys: [perChannel(asymmetric({ bits: 2 }), { tokens: 32 })],
  values: [perToken(asymmetric({ bits: 3 }), { channels: 16 })],
  sinks: 0,
  window: 16,
  stream,
});
const schemes: readonly ScalarScheme[] = [
  blocks,
  defineScheme({
    name: 'turned',
    keys: [hadamard(), perToken(symmetric({ bits: 4 }))],
    values: [hadamard(), perToken(lloydMax({ bits: 3 }))],
    sinks: 4,
    window: 16,
    stream,
  }),
  defineScheme({
    name: 'whole',
    keys: [unrope(), perChannel(symmetric({ bits: 8 }))],
    values: [perHead(float8({ format: 'e4m3' }))],
    sinks: 2,
    window: 5,
    stream,
  }),
];

interface Fault {
  readonly name: string;
  readonly file: string;
  readonly from: string;
  readonly to: string;
  /** What the failure is about. */
  readonly what: RegExp;
}

/** Faults in the kernels that compress a prompt by `blocks`. */
const faults: Readonly<Record<DeviceName, readonly Fault[]>> = {
  emulator: [
    {
      name: 'a scale is one in a hundred too large',
      file: 'scale_keys.cu',
      from: 'magnitude_scale(sum.x, largest.x)',
      to: 'magnitude_scale(sum.x, largest.x * 1.01f)',
      what: /^keys: scale, in f16 steps: KV head \d, middle tokens \d+ to \d+, channels \d*[02468] to \d*[02468]$/,
    },
    {
      name: 'codes are of numbers one in twenty too small',
      file: 'pack_values.cu',
      from: 'asymmetric_code_3(unit,',
      to: 'asymmetric_code_3(unit * 0.95f,',
      what: /^values: code, from what asymmetric gives for the stored scale: KV head \d, middle token \d+, channel \d+$/,
    },
  ],
  webgpu: [
    {
      name: 'a scale is one in a hundred too large',
      file: 'scale_keys.wgsl',
      from: 'magnitude_scale(sum.x, largest.x)',
      to: 'magnitude_scale(sum.x, largest.x * 1.01)',
      what: /^keys: scale, in f16 steps: KV head \d, middle tokens \d+ to \d+, channels \d*[02468] to \d*[02468]$/,
    },
    {
      name: 'codes are of numbers one in twenty too small',
      file: 'pack_values.wgsl',
      from: 'return asymmetric_code_3(over_scale);',
      to: 'return asymmetric_code_3(over_scale * 0.95);',
      what: /^values: code, from what asymmetric gives for the stored scale: KV head \d, middle token \d+, channel \d+$/,
    },
  ],
};

function planted(generated: GeneratedKernels, { file, from, to }: Fault): GeneratedKernels {
  const text = generated.files.get(file)!;
  expect(text.split(from)).toHaveLength(2);
  return { ...generated, files: new Map([...generated.files, [file, text.replace(from, to)]]) };
}

/** The first seed of a prompt of ordinary numbers that is longer than what is kept of it. */
function longPrompt(): number {
  const geometry = geometryOf(blocks, narrow);
  for (let seed = 1; ; seed++) {
    const { kind, draw } = drawCase(geometry, seed);
    if (kind !== 'prefill' || draw.tokens < 40) continue;
    if (draw.keys === 'normal' && draw.values === 'normal') return seed;
  }
}

describe.each(deviceNames)('verify on %s of schemes that code every channel', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  test.each(schemes)('$name passes', async (scheme) => {
    const lines: string[] = [];
    const result = await verifyScheme(device, scheme, narrow, {
      cases: 30,
      seed: 1,
      onProgress: (line) => lines.push(line),
    });
    expect(result).toMatchObject({ cases: 30, failed: 0, failures: [] });
    expect(result.maxError).toBeGreaterThan(0);
    for (const kind of ['attend', 'decompress', 'append', 'prefill']) expect(lines.join()).toContain(`(${kind})`);
  });

  test.each(faults[deviceName])('$name: found in a prompt', async (fault) => {
    const generated = await generate(blocks, narrow, defaultTargets[device.target]);
    const options = { cases: 1, seed: longPrompt() };
    expect(await verifyScheme(device, blocks, narrow, { ...options, generated })).toMatchObject({ failed: 0 });
    const broken = planted(generated, fault);
    const { failures } = await verifyScheme(device, blocks, narrow, { ...options, generated: broken });
    expect(failures[0]?.what).toMatch(fault.what);
    expect(failures[0]!.error).toBeGreaterThan(failures[0]!.bar);
  });
});
