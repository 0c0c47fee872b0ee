import { afterAll, beforeAll, expect, test } from 'vitest';
import { generate } from '../../../codegen/generate.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { layerShape } from '../../../dsl/model.js';
import type { TiltGeometry } from '../../../dsl/tiltGeometry.js';
import { KvCache } from '../../../runtime/cache.js';
import { fitTexts } from '../../../runtime/calibrate/fit.js';
import { fitParts } from '../../../runtime/calibrate/parts.js';
import type { Device } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { emptyTensor } from '../../../runtime/reference/index.js';
import { halfValues } from '../../../runtime/verify/draws.js';
import { targetOf } from '../../stages/harness.js';
import { tiltCases } from '../../stages/tiltCases.js';
import { faultOf, halves, proxied } from '../cacheCase.js';

const { scheme, model } = tiltCases[0]!;
const g = geometryOf(scheme, model) as TiltGeometry;
const tokens = 150;
const tensor = (heads: number, seed: number) => {
  const data = halfValues(halves(heads * tokens * g.headDim, seed));
  return { ...emptyTensor(heads, tokens, g.headDim), data };
};
const fitOf = (seed: number) =>
  fitTexts(g, layerShape(model, 0), [{ keys: tensor(g.kvHeads, seed), queries: tensor(g.heads, seed + 1) }]);
const [fit, another] = [fitOf(1), fitOf(3)];
const promptOf = (seed: number) => {
  const size = g.kvHeads * tokens * g.headDim;
  return { keys: halves(size, seed), values: halves(size, seed + 1), tokens };
};
const capacity = { sequences: 2, tokens, generated: 0 };

let device: Device;
let kernels: LoadedKernels;
/** Labels of what was allocated, in order. */
let allocated: string[] = [];
const live = new Set<object>();
let failing: string | undefined;
beforeAll(async () => {
  device = await EmulatorDevice.open();
  const counted = proxied(device, {
    allocate: (label, bytes) => {
      const buffer = device.allocate(label, bytes);
      allocated.push(label);
      live.add(buffer);
      const release = buffer.release.bind(buffer);
      buffer.release = () => {
        live.delete(buffer);
        release();
      };
      return buffer;
    },
    run: (launches) => (failing === undefined ? device.run(launches) : Promise.reject(new Error(failing))),
  });
  kernels = await LoadedKernels.load(counted, await generate(scheme, model, targetOf(device)));
});
afterAll(() => device?.close());

const uploads = ['weights', 'vectors', 'column_scales', 'fit_share'];
/** What work uploads of a fit. */
async function uploadedBy(work: () => Promise<void>): Promise<readonly string[]> {
  allocated = [];
  await work();
  return allocated.filter((label) => uploads.includes(label));
}

test('a fit is uploaded with its first prompt alone, and codes the next ones by the same bytes', async () => {
  const cache = KvCache.open(kernels, capacity);
  const before = live.size;
  expect(await uploadedBy(() => cache.prefill(0, { ...promptOf(5), fit: another }))).toEqual(uploads);
  expect(await uploadedBy(() => cache.prefill(0, { ...promptOf(5), fit }))).toEqual(uploads);
  expect(await uploadedBy(() => cache.prefill(1, { ...promptOf(5), fit }))).toEqual([]);
  // The first of the two fits is freed, and so is all scratch.
  expect(live.size).toBe(before + uploads.length);
  const fresh = KvCache.open(kernels, capacity);
  await fresh.prefill(0, { ...promptOf(5), fit });
  const expected = await fresh.readShare(0);
  await fresh.release();
  expect(await cache.readShare(0)).toEqual(expected);
  expect(await cache.readShare(1)).toEqual(expected);
  for (const [name, bytes] of fitParts(g, fit).share) {
    const { offset } = cache.layout.parts.find((part) => part.name === name)!;
    expect(expected.subarray(offset, offset + bytes.length), name).toEqual(bytes);
  }
  await cache.release();
  expect(live.size).toBe(0);
});

test('a sequence that changed its share gets the fit where it is now', async () => {
  const cache = KvCache.open(kernels, capacity);
  await cache.prefill(0, { ...promptOf(5), fit });
  await cache.prefill(1, { ...promptOf(7), fit });
  const [first, second] = [await cache.readShare(0), await cache.readShare(1)];
  await cache.reorder([1, 0]);
  expect(await uploadedBy(() => cache.prefill(0, { ...promptOf(5), fit: another }))).toEqual(uploads);
  expect(await cache.readShare(1)).toEqual(first);
  expect(await uploadedBy(() => cache.prefill(0, { ...promptOf(7), fit }))).toEqual(uploads);
  expect(await cache.readShare(0)).toEqual(second);
  await cache.release();
});

test('after a prompt that failed, the fit is uploaded anew', async () => {
  const cache = KvCache.open(kernels, capacity);
  const before = live.size;
  failing = 'lost';
  expect(await faultOf(cache.prefill(0, { ...promptOf(5), fit }))).toBe('Error lost');
  failing = undefined;
  expect(live.size).toBe(before);
  expect(await uploadedBy(() => cache.prefill(0, { ...promptOf(5), fit }))).toEqual(uploads);
  await cache.release();
  expect(live.size).toBe(0);
});
