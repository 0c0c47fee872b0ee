import { expect } from 'vitest';
import { CudaDevice } from '../../../runtime/cuda/cudaDevice.js';
import { targetFor } from '../../../runtime/targetFor.js';
import { faultOf } from '../conformance/bench.js';
import { fakes, fakeTest, kernelNamed, withEnvironment } from './harness.js';

const [first, second] = ['GPU-00010203-0405-0607-0809-0a0b0c0d0e0f', 'GPU-10111213-1415-1617-1819-1a1b1c1d1e1f'];

async function opened<T>(options: object, look: (device: CudaDevice) => T): Promise<Awaited<T>> {
  const device = await CudaDevice.open({ cache: fakes.folder, ...options });
  try {
    return await look(device);
  } finally {
    await device.close();
  }
}

fakeTest('all devices are listed', () =>
  withEnvironment({ FAKE_CUDA_DEVICES: '2', FAKE_CUDA_BYTES: '4096', FAKE_CUDA_CC: '80' }, async () => {
    expect(await CudaDevice.list()).toEqual([
      { index: 0, name: 'Fake GPU A', uuid: first, architecture: 'sm_80', bytes: 4096 },
      { index: 1, name: 'Fake GPU B', uuid: second, architecture: 'sm_80', bytes: 4096 },
    ]);
  }),
);

fakeTest('a device is chosen by index or by UUID, and is the first one by default', () =>
  withEnvironment({ FAKE_CUDA_DEVICES: '2' }, async () => {
    const uuidOf = (options: object) => opened(options, ({ identity }) => identity.uuid);
    expect(await uuidOf({})).toBe(first);
    expect(await uuidOf({ device: 1 })).toBe(second);
    expect(await uuidOf({ device: second })).toBe(second);
  }),
);

fakeTest('a device that is not there is answered with those that are', () =>
  withEnvironment({ FAKE_CUDA_DEVICES: '2' }, async () => {
    for (const device of [2, -1, 'GPU-ffffffff-0405-0607-0809-0a0b0c0d0e0f']) {
      expect(await faultOf(() => CudaDevice.open({ device }))).toBe(
        `wrong-use: cuda device: expected one of 0 (Fake GPU A, ${first}), 1 (Fake GPU B, ${second}), got ${device}. Give an index or a UUID.`,
      );
    }
  }),
);

fakeTest('without any device the driver is to blame', () =>
  withEnvironment({ FAKE_CUDA_DEVICES: '0' }, async () => {
    expect(await faultOf(() => CudaDevice.open())).toBe(
      'missing-capability: cuda device: expected a GPU, got none that the driver shows. Check nvidia-smi and CUDA_VISIBLE_DEVICES.',
    );
    expect(await CudaDevice.list()).toEqual([]);
  }),
);

fakeTest('a device older than 8.0 is refused', () =>
  withEnvironment({ FAKE_CUDA_CC: '75' }, async () => {
    expect(await faultOf(() => CudaDevice.open())).toBe(
      'missing-capability: cuda device 0: expected compute capability 8.0 or later, got 7.5 (Fake GPU A). Use another GPU, or --device webgpu.',
    );
    expect((await CudaDevice.list())[0]!.architecture).toBeUndefined();
  }),
);

fakeTest(
  'kernels for every architecture up to its own run on a device, and variants on exactly their own',
  async () => {
    const cases = [
      ['80', ['sm_80']],
      ['90', ['sm_80', 'sm_86', 'sm_87', 'sm_89', 'sm_90', 'sm_90a']],
      ['100', ['sm_80', 'sm_86', 'sm_87', 'sm_89', 'sm_90', 'sm_100']],
      ['121', ['sm_80', 'sm_86', 'sm_87', 'sm_89', 'sm_90', 'sm_100', 'sm_103', 'sm_110', 'sm_120']],
    ] as const;
    for (const [capability, features] of cases) {
      await withEnvironment({ FAKE_CUDA_CC: capability }, () =>
        opened({}, (device) => {
          expect([...device.features]).toEqual(features);
          expect(targetFor(device)).toEqual({ language: 'cuda', arch: features.at(-1), tensorCores: true });
        }),
      );
    }
    await withEnvironment({ FAKE_CUDA_CC: '100' }, () =>
      opened({}, async (device) => {
        const fault = await faultOf(() => device.compile([kernelNamed('grow', { requires: ['sm_90a'] })]));
        expect(fault).toBe(
          'missing-capability: grow.cu: grow: expected a device with sm_90a, got one with sm_100, sm_80, sm_86, sm_87, sm_89, sm_90. Generate the kernel without it, or open a device that has it.',
        );
      }),
    );
  },
);

fakeTest('a device says what it is', () =>
  opened({}, ({ identity, limits, clock, description }) => {
    expect(identity).toMatchObject({ name: 'Fake GPU A', architecture: 'sm_90a', multiprocessors: 132, uuid: first });
    expect(identity.driver).toMatch(/CUDA 13\.0/);
    expect(identity.cacheBytes).toBe(62914560);
    expect(limits).toEqual({
      sharedBytes: 232448,
      buffersPerKernel: 32,
      bytesPerBinding: 2 ** 31,
      blocksPerDimension: 2 ** 31 - 1,
      threadsPerBlock: 1024,
    });
    expect(clock).toBe('device');
    expect(description).toBe(`Fake GPU A (driver ${identity.driver}, compute capability 9.0)`);
  }),
);
