import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { WebGpuDevice } from '../../runtime/webgpu/webgpu.js';
import { deviceConformance } from './device-conformance.js';

deviceConformance('WebGPU in software', () => WebGpuDevice.open({ adapter: 'software', poison: true }));
deviceConformance('the emulator', () => EmulatorDevice.open());
