import { expect } from 'vitest';
import { cudaChecks } from '../../../cli/checks/cuda.js';
import { openDevice } from '../../../cli/devices.js';
import { findAddon } from '../../../runtime/cuda/addon.js';
import { quietContext } from '../../cli/support.js';
import { faultOf } from '../conformance/bench.js';
import { fakes, fakeTest, withEnvironment } from './harness.js';

/** Checks by name, without nvcc, which may or may not be here. */
async function checked() {
  const checks = (await cudaChecks()).filter(({ name }) => name !== 'nvcc');
  return Object.fromEntries(checks.map(({ name, detail, fix, runsOn }) => [name, { detail, fix, runsOn }]));
}

fakeTest('doctor lists addon, driver, every GPU, NVRTC and the cache', () =>
  withEnvironment({ FAKE_CUDA_DEVICES: '2' }, async () => {
    const checks = await checked();
    expect(Object.keys(checks)).toEqual([
      'cuda addon',
      'nvidia driver',
      'gpu 0: Fake GPU A',
      'gpu 1: Fake GPU B',
      'nvrtc',
      'cuda kernel cache',
    ]);
    expect(checks['cuda addon']!.detail).toBe(await findAddon());
    expect(checks['nvidia driver']!.detail).toMatch(/CUDA 13\.0.*, .*libcuda\.so$/);
    expect(checks['gpu 1: Fake GPU B']).toEqual({
      detail: 'GPU-10111213-1415-1617-1819-1a1b1c1d1e1f; 1.0 GiB; sm_90a; KVFORGE_GPU=1 chooses it',
      fix: '',
      runsOn: 'cuda',
    });
    expect(checks.nvrtc!.detail).toBe(`13.0, ${fakes.libnvrtc}`);
  }),
);

fakeTest('doctor says what is wrong with a GPU, or that there is none', async () => {
  await withEnvironment({ FAKE_CUDA_CC: '75' }, async () => {
    expect((await checked())['gpu 0: Fake GPU A']).toMatchObject({
      detail: 'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f; 1.0 GiB; older than compute capability 8.0',
      fix: 'Use another GPU.',
    });
  });
  await withEnvironment({ FAKE_CUDA_DEVICES: '0' }, async () => {
    expect((await checked()).gpu).toMatchObject({
      detail: 'none that the driver shows',
      fix: 'Check nvidia-smi and CUDA_VISIBLE_DEVICES.',
    });
  });
});

fakeTest(
  '--device cuda opens the GPU that KVFORGE_GPU names, with fresh buffers full of NaN where faults should show',
  () =>
    withEnvironment({ FAKE_CUDA_DEVICES: '2', KVFORGE_GPU: '1' }, async () => {
      const device = await openDevice('cuda', { checks: 'full' }, quietContext());
      expect(device.identity.name).toBe('Fake GPU B');
      expect([...(await device.read(device.allocate('fresh', 8)))]).toEqual(Array(8).fill(255));
      await device.close();
      const { uuid } = device.identity;
      await withEnvironment({ KVFORGE_GPU: uuid! }, async () => {
        const same = await openDevice('cuda', { checks: 'none' }, quietContext());
        expect(same.identity.uuid).toBe(uuid);
        await same.close();
      });
      await withEnvironment({ KVFORGE_GPU: 'nonsense' }, async () => {
        expect(await faultOf(() => openDevice('cuda', { checks: 'none' }, quietContext()))).toMatch(
          /got nonsense\. Give/,
        );
      });
    }),
);
