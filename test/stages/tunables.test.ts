import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { generate, type TunableChoice } from '../../codegen/generate.js';
import type { Target, Tunable } from '../../dsl/stage.js';
import { stagesOf } from '../../dsl/stages/index.js';
import type { Device } from '../../runtime/device.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { deviceNames, makeCase, openDevice, targetOf } from './harness.js';

const drawn = makeCase({
  heads: 6,
  kvHeads: 2,
  headDim: 32,
  rank: 32,
  bits: [4, 2],
  group: 16,
  entries: 32,
  streamBits: 4,
});

type Flavour = NonNullable<Parameters<typeof targetOf>[1]>;

/** The k-th value of every tunable, the last one where there are fewer: together they meet every value once. */
function choiceOf(target: Target, k: number): TunableChoice {
  return Object.fromEntries(
    stagesOf['low-rank'].map((stage) => {
      const space: Readonly<Record<string, Tunable>> = stage.tunables(target);
      const chosen = Object.entries(space)
        // One half instead of two trades accuracy for speed, and would miss the bar by design.
        .filter(([name]) => name !== 'coefficientHalves')
        .map(([name, { values }]) => [name, values[Math.min(k, values.length - 1)]!]);
      return [stage.name, Object.fromEntries(chosen)];
    }),
  );
}

describe.each(deviceNames)('every value of every tunable on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  const flavours: readonly { readonly options: Flavour; readonly choices: readonly number[] }[] =
    deviceName === 'emulator'
      ? [
          { options: { tensorCores: false }, choices: [1, 2] },
          { options: { tensorCores: true }, choices: [1, 2, 3] },
        ]
      : [{ options: { subgroups: true }, choices: [1, 2] }];
  describe.each(flavours)('$options', ({ options, choices }) => {
    it.each(choices)('verifies with choice %i', async (k) => {
      const target = targetOf(device, options);
      const generated = await generate(drawn.scheme, drawn.model, target, choiceOf(target, k));
      const result = await verifyScheme(device, drawn.scheme, drawn.model, { cases: 5, seed: 10 * k, generated });
      expect(result.failures).toEqual([]);
    });
  });
});
