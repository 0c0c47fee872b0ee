import { afterEach, expect, test, vi } from 'vitest';
import { openDevice } from '../../../cli/devices.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';
import { quietContext } from '../../cli/support.js';

afterEach(() => vi.restoreAllMocks());

/** What the command line asks a device class for; no device is opened. */
async function optionsOf(name: 'emulator' | 'webgpu', checks: 'full' | 'none'): Promise<unknown> {
  const owner: { open(options: unknown): Promise<unknown> } = name === 'emulator' ? EmulatorDevice : WebGpuDevice;
  const open = vi.spyOn(owner, 'open').mockResolvedValue({ close: async () => {} });
  await (await openDevice(name, { checks }, quietContext())).close();
  return open.mock.lastCall?.[0];
}

test('with full checks, as verify asks for, nothing is zeroed or in order by chance', async () => {
  expect(await optionsOf('emulator', 'full')).toEqual({ checks: 'full', order: 'shuffled' });
  expect(await optionsOf('webgpu', 'full')).toEqual({ adapter: 'any', poison: true });
});

test('without checks, as the demo asks for, devices are as fast as they can be', async () => {
  expect(await optionsOf('emulator', 'none')).toEqual({ checks: 'none', order: 'ascending' });
  expect(await optionsOf('webgpu', 'none')).toEqual({ adapter: 'any', poison: false });
});
