import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import type { Device } from '../../runtime/device.js';
import { drawCase } from '../../runtime/verify/caseDraws.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { type DeviceName, deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { tiltCases } from '../stages/tiltCases.js';

/** Part of a text, and what takes its place. */
type Change = readonly [from: string, to: string];

interface Fault {
  readonly name: string;
  readonly entry: string;
  readonly changes: Readonly<Record<DeviceName, Change>>;
  /** What the first failure is about. */
  readonly what: RegExp;
}

/** Of every kernel that compresses a prompt and is the family's own, one fault. */
const faults: readonly Fault[] = [
  {
    name: 'the second channel of a pair has another weight',
    entry: 'tilt_weigh',
    changes: {
      emulator: ['pair[PAIRS] = weight;', 'pair[PAIRS] = weight * 0.99f;'],
      webgpu: ['weights[pair + PAIRS] = weight;', 'weights[pair + PAIRS] = weight * 0.99;'],
    },
    what: /^keyWeights, over their rounding: channel \d+$/,
  },
  {
    name: 'places in a tile are counted from the first token of the middle',
    entry: 'tilt_turn_keys',
    changes: {
      emulator: ['(sequence[AT_SINK_TOKENS] + token) % TILE', 'token % TILE'],
      webgpu: ['(sequence[AT_SINK_TOKENS] + token) % TILE', 'token % TILE'],
    },
    // A rotation by as many positions everywhere leaves the variances as they are.
    what: /^keySteps, over their rounding: KV head \d, component \d+, range block 0$/,
  },
  {
    name: 'second moments are one in a hundred too large',
    entry: 'tilt_gram',
    changes: {
      emulator: [
        'moments[row * HEAD_DIM + column] = total[r][c];',
        'moments[row * HEAD_DIM + column] = 1.01f * total[r][c];',
      ],
      webgpu: ['sums[k] / f32(', '1.01 * sums[k] / f32('],
    },
    what: /^eigenvalues, from those of the second moments, over their rounding: KV head \d, component 0$/,
  },
  {
    name: 'planes have room for four bits',
    entry: 'tilt_allocate',
    changes: { emulator: ['used[plane] + bits > 8)', 'used[plane] + bits > 4)'], webgpu: ['bits > 8u)', 'bits > 4u)'] },
    what: /^key codes, from their quotient: middle token \d+, KV head \d, component \d+, range block 0$/,
  },
  {
    name: 'the narrowest widths are not tried',
    entry: 'tilt_widths',
    changes: {
      emulator: ['candidate < CANDIDATES;', 'candidate < CANDIDATES - 40;'],
      webgpu: ['candidate < CANDIDATES;', 'candidate < CANDIDATES - 40u;'],
    },
    what: /^keyFields, widths [\d,]+: (error beyond the least|nibbles beyond those of a row)$/,
  },
  {
    name: 'a basis is coded by a scale that is one in a hundred too large',
    entry: 'tilt_store',
    changes: { emulator: ['largest / 127.0f', 'largest / 125.7f'], webgpu: ['largest / 127.0', 'largest / 125.7'] },
    what: /^keyBasis, codes from their quotient: KV head \d, channel \d+, component \d+$/,
  },
  {
    name: 'components are one in twenty too large',
    entry: 'tilt_project',
    changes: {
      emulator: ['+ component] = total[r][c];', '+ component] = 1.05f * total[r][c];'],
      webgpu: ['+ component] = total;', '+ component] = 1.05 * total;'],
    },
    what: /^keySteps, over their rounding: KV head \d, component \d+, range block 0$/,
  },
  {
    name: 'a step is one in a hundred too large',
    entry: 'tilt_steps',
    changes: {
      emulator: ['stored[component] = folded;', 'stored[component] = folded * 1.01f;'],
      webgpu: ['stored[thread] = folded;', 'stored[thread] = folded * 1.01;'],
    },
    what: /^keySteps, over their rounding: KV head \d, component \d+, range block 0$/,
  },
  {
    name: 'key codes lie at the positions of other lines',
    entry: 'tilt_pack_keys',
    changes: {
      emulator: ['inside % 4 * 8 + line % 8', 'inside % 4 * 8 + 7 - line % 8'],
      webgpu: ['inside % 4u * 8u + line % 8u', 'inside % 4u * 8u + 7u - line % 8u'],
    },
    what: /^key codes, from their quotient: middle token \d+, KV head \d, component \d+, range block 0$/,
  },
  {
    name: 'norms are one in a hundred too large',
    entry: 'tilt_norms',
    changes: {
      emulator: ['vector_norm(sum, largest)', 'vector_norm(sum, largest * 1.01f)'],
      webgpu: ['vector_norm(sum, largest)', 'vector_norm(sum, largest * 1.01)'],
    },
    what: /^values: scale, in f16 steps: KV head \d, middle tokens \d+ to \d+, channels 0 to 31$/,
  },
  {
    name: 'value codes of even and odd positions are exchanged',
    entry: 'tilt_pack_values',
    changes: {
      emulator: ['+ line / lines;', '+ 1 - line / lines;'],
      webgpu: ['+ line / lines;', '+ 1u - line / lines;'],
    },
    what: /^values: code, from what uniformNormal gives for the stored scale: KV head \d, middle token \d+, channel \d+$/,
  },
  {
    name: 'squares are one in a hundred too large',
    entry: 'tilt_products',
    changes: {
      emulator: ['squares += value * value;', 'squares += value * value * 1.01f;'],
      webgpu: ['squares += value * value;', 'squares += value * value * 1.01;'],
    },
    what: /^valueGains, over their rounding: KV head \d, channel \d+$/,
  },
  {
    name: 'two channels have the gain of the first',
    entry: 'tilt_gains',
    changes: {
      emulator: ['gain(word * 2 + 1)', 'gain(word * 2)'],
      webgpu: ['gain_of(word * 2u + 1u)', 'gain_of(word * 2u)'],
    },
    what: /^valueGains, over their rounding: KV head \d, channel \d+$/,
  },
];

const [{ scheme: planted, model: plantedModel }] = tiltCases as [(typeof tiltCases)[0]];

function withFault(generated: GeneratedKernels, { entry, changes }: Fault, device: DeviceName): GeneratedKernels {
  const file = `${entry}.${device === 'emulator' ? 'cu' : 'wgsl'}`;
  const [from, to] = changes[device];
  const text = generated.files.get(file)!;
  expect(text.split(from)).toHaveLength(2);
  return { ...generated, files: new Map([...generated.files, [file, text.replace(from, to)]]) };
}

/** The first seed of a prompt of ordinary numbers that is longer than what is kept of it. */
function longPrompt(): number {
  const geometry = geometryOf(planted, plantedModel);
  for (let seed = 1; ; seed++) {
    const { kind, draw } = drawCase(geometry, seed);
    if (kind !== 'prefill' || draw.tokens < 50) continue;
    if (draw.keys === 'normal' && draw.values === 'normal') return seed;
  }
}

describe.each(deviceNames)('verify on %s of tile-rotated keys', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  test.each(tiltCases)('$name passes', async ({ scheme, model }) => {
    const lines: string[] = [];
    const result = await verifyScheme(device, scheme, model, {
      cases: 16,
      seed: 1,
      onProgress: (line) => lines.push(line),
    });
    expect(result).toMatchObject({ cases: 16, failed: 0, failures: [] });
    for (const kind of ['attend', 'decompress', 'append', 'prefill']) expect(lines.join()).toContain(`(${kind})`);
  });

  test.each(faults)('$name: found in a prompt', async (fault) => {
    const generated = await generate(planted, plantedModel, targetOf(device));
    const options = { cases: 1, seed: longPrompt() };
    const broken = withFault(generated, fault, deviceName);
    const { failures } = await verifyScheme(device, planted, plantedModel, { ...options, generated: broken });
    expect(failures[0]?.what).toMatch(fault.what);
    expect(failures[0]!.error).toBeGreaterThan(failures[0]!.bar);
  });

  test('a prompt of the planted faults passes without one', async () => {
    const options = { cases: 1, seed: longPrompt() };
    expect(await verifyScheme(device, planted, plantedModel, options)).toMatchObject({ failed: 0 });
  });
});
