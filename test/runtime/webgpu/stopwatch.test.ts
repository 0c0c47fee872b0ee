import { afterAll, beforeAll, expect, test } from 'vitest';
import { Stopwatch } from '../../../runtime/webgpu/stopwatch.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';
import { faultOf } from '../conformance/bench.js';
import { conformanceKernels } from '../conformance/kernels.js';

let device: WebGpuDevice;
beforeAll(async () => {
  device = await WebGpuDevice.open({ adapter: 'software' });
});
afterAll(() => device?.close());

async function samples(rounds: number): Promise<readonly number[]> {
  const [kernel] = await device.compile([conformanceKernels('wgsl').grow]);
  const output = { buffer: device.allocate('output', 4) };
  return device.time([[{ kernel: kernel!, grid: [1, 1, 1], bindings: { output } }]], { samples: 20, rounds });
}

test('timestamps are not rounded to the 65.536 us that a web page gets', async () => {
  const nanoseconds = (await samples(3)).map((time) => Math.round(time * 3 * 1000));
  expect(nanoseconds.filter((time) => time % 65536 !== 0).length).toBeGreaterThan(15);
});

test("without timestamps the clock is the host's", async () => {
  const bare = await WebGpuDevice.open({ adapter: 'software', features: [] });
  expect([device.clock, bare.clock]).toEqual(['device', 'host']);
  await bare.close();
});

/** A GPU whose two timestamps are these. */
function clockOf(first: bigint, last: bigint): GPUDevice {
  const buffer = {
    mapAsync: async () => {},
    getMappedRange: () => BigUint64Array.of(first, last).buffer,
    unmap: () => {},
    destroy: () => {},
  };
  return { createQuerySet: () => ({ destroy: () => {} }), createBuffer: () => buffer } as unknown as GPUDevice;
}

test('a clock that did not advance, or went back, is no measurement', async () => {
  const told =
    'wrong-use: rounds: expected enough for the clock of the device to advance, got 7, in which it did not. Raise rounds, or put more launches into a list.';
  expect(await faultOf(() => new Stopwatch(clockOf(65536n, 65536n)).read(7))).toBe(told);
  expect(await faultOf(() => new Stopwatch(clockOf(65536n, 0n)).read(7))).toBe(told);
  expect(await new Stopwatch(clockOf(1000n, 3500n)).read(7)).toBe(2.5);
});
