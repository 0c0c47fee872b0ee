import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { geometryOf } from '../../dsl/geometry.js';
import { modelFrom } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import type { Device } from '../../runtime/device.js';
import { drawCase } from '../../runtime/verify/caseDraws.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { openDevice } from '../stages/harness.js';
import { belowZero, withoutNumbers } from './brokenCodecs.js';

const shapeOf = (positions: number) =>
  modelFrom(
    {
      model_type: 'llama',
      num_hidden_layers: 1,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      head_dim: 32,
      max_position_embeddings: positions,
    },
    'tiny',
  );
const tiny = shapeOf(4096);
const geometry = geometryOf(shard, tiny);

/** The first seed whose case is of the kind, and enters tokens into the stream if they are appended. */
function seedOf(kind: 'append' | 'prefill'): number {
  for (let seed = 1; ; seed++) {
    const drawn = drawCase(geometry, seed);
    if (drawn.kind !== kind) continue;
    if (drawn.kind !== 'append') return seed;
    const { start, codes } = drawn.draw;
    if (start === 'codes' && codes.sequences[0]!.window === geometry.scheme.window) return seed;
  }
}

let device: Device;
beforeAll(async () => {
  device = await openDevice('emulator');
});
afterAll(() => device?.close());

test.each(['append', 'prefill'] as const)('%s: a context shorter than the draws hides nothing', async (kind) => {
  const options = { cases: 1, seed: seedOf(kind) };
  const short = await verifyScheme(device, shard, shapeOf(8), options);
  expect(short).toMatchObject({ cases: 1, failed: 0, skipped: 0, failures: [] });
  expect(short).toEqual(await verifyScheme(device, shard, tiny, options));
});

describe("a scale that breaks the codec's contract is a failed check", () => {
  const failuresOf = async (scheme: typeof shard) => {
    const { failed, failures } = await verifyScheme(device, scheme, tiny, { cases: 1, seed: seedOf('append') });
    expect(failed).toBe(1);
    return failures.map(({ what }) => what);
  };

  test('not a number', async () => {
    const failures = await failuresOf(withoutNumbers);
    for (const expected of [
      /^stream keys: the scale of without-numbers is not a finite number >= 0, NaN: sequence 0, stream token \d+, KV head 0$/,
      /^decoded keys are not finite: sequence 0, KV head 0, token \d+, channel 0, from a stored scale of the codec without-numbers: NaN$/,
      /^decoded values are not finite: .*, from a stored scale of the codec without-numbers: NaN$/,
    ]) {
      expect(failures).toContainEqual(expect.stringMatching(expected));
    }
  });

  test('below zero', async () => {
    expect(await failuresOf(belowZero)).toContainEqual(
      expect.stringMatching(
        /^stream keys: the scale of below-zero is not a finite number >= 0, -[\d.]+: sequence 0, stream token \d+, KV head 0$/,
      ),
    );
  });
});
