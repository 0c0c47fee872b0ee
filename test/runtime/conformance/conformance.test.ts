import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { Tap } from '../../../runtime/verify/tap.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';
import { conformance } from './suite.js';

conformance('WebGPU in software', () => WebGpuDevice.open({ adapter: 'software', poison: true }));
conformance('WebGPU without features', () => WebGpuDevice.open({ adapter: 'software', features: [] }));
conformance('the emulator with checks', () => EmulatorDevice.open());
conformance('the emulator without checks, in shuffled order', () =>
  EmulatorDevice.open({ checks: 'none', order: 'shuffled', seed: 3 }),
);
conformance('a tapped device', async () => new Tap(await EmulatorDevice.open(), { bindings: {}, apart: false }));
