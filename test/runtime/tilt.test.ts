import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { geometryOf } from '../../dsl/geometry.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { attentionError, decodeTilt, emptyTensor, encodeTilt } from '../../runtime/reference/index.js';
import { codecValues } from '../../runtime/verify/codeValues.js';
import { halfBits, halfValues, numbers } from '../../runtime/verify/draws.js';
import { readHeld } from '../../runtime/verify/held.js';
import { deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { tiltCases } from '../stages/tiltCases.js';

describe.each(deviceNames)('prompts with tile-rotated keys on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  test.each(tiltCases)('lose as much as in float64: $name', async ({ scheme, model }) => {
    const g = geometryOf(scheme, model);
    const kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
    const tokens = 150;
    const tensor = (heads: number, seed: number) => {
      const bits = halfBits(numbers({ kind: 'normal', seed }, heads * tokens, g.headDim));
      return { bits, exact: { ...emptyTensor(heads, tokens, g.headDim), data: halfValues(bits) } };
    };
    const [keys, values, queries] = [tensor(g.kvHeads, 1), tensor(g.kvHeads, 2), tensor(g.heads, 3)];
    const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
    await cache.prefill(0, { keys: keys.bits, values: values.bits, queries: queries.bits, tokens });
    const { decoded } = await readHeld(cache, 0);
    await cache.release();
    const exact = { keys: keys.exact, values: values.exact };
    const rule = {
      levels: [...codecValues(g.values.codec, g.values.levelChannels)],
      offset: g.values.codec.device.offset ? 'least' : 'none',
      scale: g.values.codec.device.offset ? 'largest' : 'norm',
    } as const;
    const own = decodeTilt(
      encodeTilt(exact, model, {
        bits: scheme.keys[2].bits,
        tile: g.tile,
        group: g.groupComponents,
        rangeBlock: g.rangeBlock,
        queries: queries.exact,
        values: { rule, channels: g.values.scaleChannels },
        gains: g.gained,
        sinks: scheme.sinks,
        window: scheme.window,
      }),
    );
    const error = (of: typeof decoded) => attentionError({ queries: queries.exact, exact, decoded: of });
    expect(error(decoded)).toBeLessThanOrEqual(1.02 * error(own));
  });
});
