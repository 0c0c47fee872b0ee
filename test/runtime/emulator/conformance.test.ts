import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { deviceConformance } from '../device-conformance.js';

deviceConformance('the emulator with checks', () => EmulatorDevice.open());
deviceConformance('the emulator without checks, in shuffled order', () =>
  EmulatorDevice.open({ checks: 'none', order: 'shuffled', seed: 3 }),
);
