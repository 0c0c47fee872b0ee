import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defaultTargets, type GeneratedKernels, generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import { modelFrom, presetModel } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import type { Device } from '../../runtime/device.js';
import { drawCase } from '../../runtime/verify/caseDraws.js';
import { type VerifyOptions, verifyScheme } from '../../runtime/verify/index.js';
import { documentOf, spawned, temporaryFolder } from '../cli/support.js';
import { type DeviceName, deviceNames, openDevice } from '../stages/harness.js';

/** GQA 2 on two KV heads: small enough that a prefill takes a second, and every schedule has more than one head. */
const tinyConfig = {
  model_type: 'llama',
  hidden_size: 128,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 32,
  rope_theta: 10000,
  max_position_embeddings: 4096,
};
const tiny = modelFrom(tinyConfig, 'tiny');
const geometry = geometryOf(shard, tiny);

/** The first seed from `seed` on whose case is of the kind, and for appended tokens starts in codes. */
function seedOf(kind: string, seed = 1): number {
  for (let at = seed; ; at++) {
    const drawn = drawCase(geometry, at);
    if (drawn.kind === kind && (drawn.kind !== 'append' || drawn.draw.start === 'codes')) return at;
  }
}

interface Fault {
  readonly name: string;
  readonly file: string;
  readonly from: string;
  readonly to: string;
  readonly kind: string;
  /** What the failure is about. */
  readonly what: RegExp;
}

const faults: Readonly<Record<DeviceName, readonly Fault[]>> = {
  emulator: [
    {
      name: 'a barrier is missing',
      file: 'append_token.cu',
      from: '__syncthreads();  // all codes are there before they are packed',
      to: '',
      kind: 'append',
      what: /^append: append_token\.cu:\d+: .*codes/,
    },
    {
      name: 'the ring is read one slot further',
      file: 'decompress.cu',
      from: 'sequence[AT_WINDOW_START] + token',
      to: 'sequence[AT_WINDOW_START] + 1 + token',
      kind: 'decompress',
      what: /^decompress, .*KV head \d+, token \d+, channel \d+$/,
    },
    {
      name: 'a scale is one in a hundred too large',
      file: 'scale_values.cu',
      from: 'const float low = channel_scale(largest_low)',
      to: 'const float low = channel_scale(largest_low * 1.01f)',
      kind: 'prefill',
      what: /^channelMax, over its rounding: KV head \d+, channel \d*[02468]$/,
    },
  ],
  webgpu: [
    {
      name: 'the ring is read one slot further',
      file: 'decompress.wgsl',
      from: 'field(AT_WINDOW_START) + token',
      to: 'field(AT_WINDOW_START) + 1u + token',
      kind: 'decompress',
      what: /^decompress, .*KV head \d+, token \d+, channel \d+$/,
    },
    {
      name: 'scores are one in a hundred too large',
      file: 'attend.wgsl',
      from: 'SCORE_SCALE * products',
      to: 'SCORE_SCALE * products * 1.01',
      kind: 'attend',
      what: /^attend: .*splits.*head \d+, channel \d+$/,
    },
    {
      name: 'a scale is one in a hundred too large',
      file: 'scale_values.wgsl',
      from: 'vec2f(channel_scale(largest.x), ',
      to: 'vec2f(channel_scale(largest.x * 1.01), ',
      kind: 'prefill',
      what: /^channelMax, over its rounding: KV head \d+, channel \d*[02468]$/,
    },
  ],
};

function planted(generated: GeneratedKernels, { file, from, to }: Fault): GeneratedKernels {
  const text = generated.files.get(file)!;
  expect(text.split(from)).toHaveLength(2);
  return { ...generated, files: new Map([...generated.files, [file, text.replace(from, to)]]) };
}

describe.each(deviceNames)('verify on %s', (deviceName) => {
  let device: Device;
  let generated: GeneratedKernels;
  beforeAll(async () => {
    device = await openDevice(deviceName);
    generated = await generate(shard, tiny, defaultTargets[device.target]);
  });
  afterAll(() => device?.close());

  const run = (options: VerifyOptions) => verifyScheme(device, shard, tiny, { generated, ...options });

  test('Shard passes', async () => {
    const lines: string[] = [];
    const result = await run({ cases: 40, seed: 1, onProgress: (line) => lines.push(line) });
    expect(result).toMatchObject({ cases: 40, failed: 0, seed: 1, failures: [] });
    expect(result.maxError).toBeGreaterThan(0);
    expect(result.maxError).toBeLessThanOrEqual(deviceName === 'emulator' ? 2e-3 : 1e-5);
    for (const kind of ['attend', 'decompress', 'append', 'prefill']) expect(lines.join()).toContain(`(${kind})`);
  });

  test('the same seed gives the same result', async () => {
    const options = { cases: 6, seed: seedOf('append') };
    expect(await run(options)).toEqual(await run(options));
  });

  test.each(faults[deviceName])('$name: found, with a seed that replays it', async (fault) => {
    const broken = planted(generated, fault);
    // The fault shows in the second case at the latest, so that the failure's seed is not always the run's.
    const seed = seedOf(fault.kind, 10) - 1;
    let result = await run({ cases: 2, seed, generated: broken });
    // Where the draw does not reach the fault, the next of its kind may.
    for (let next = seed + 2; result.failed === 0 && next < seed + 60; next++) {
      next = seedOf(fault.kind, next);
      result = await run({ cases: 1, seed: next, generated: broken });
    }
    const [failure] = result.failures;
    expect(failure?.what).toMatch(fault.what);
    expect(failure!.error).toBeGreaterThan(failure!.bar);
    const replayed = await run({ cases: 1, seed: failure!.seed, generated: broken });
    expect(replayed.failures[0]).toEqual({ ...failure, case: 0 });
    expect(await run({ cases: 1, seed: failure!.seed })).toMatchObject({ failed: 0 });
  });
});

test.each(deviceNames)("a user's codec passes on %s", async (deviceName) => {
  const config = join(temporaryFolder(), 'config.json');
  writeFileSync(config, JSON.stringify(tinyConfig));
  const options = ['--model', config, '--device', deviceName, '--cases', '12', '--seed', `${seedOf('append')}`];
  const run = await spawned(['verify', 'examples/my-codec.ts', ...options, '--json']);
  expect(run.code, run.err).toBe(0);
  expect(documentOf(run)).toMatchObject({ scheme: 'shard-absmax', cases: 12, failures: [] });
});

test('prefills of a wide model are drawn rarely', () => {
  const model = presetModel('llama-3.1-8b');
  const wide = geometryOf(shard, model);
  const isPrefill = (seed: number) => drawCase(wide, seed).kind === 'prefill';
  const seeds = Array.from({ length: 500 }, (_, seed) => seed).filter(isPrefill);
  expect(seeds.length).toBeGreaterThan(0);
  expect(seeds.length).toBeLessThan(25);
});
