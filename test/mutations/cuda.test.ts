import { cudaSuspects, tensorSuspects } from './cuda/index.js';
import { faultSuite } from './suite.js';

faultSuite({ name: 'CUDA', deviceName: 'emulator', tensorCores: false, suspects: cudaSuspects });
faultSuite({ name: 'CUDA, tensor cores', deviceName: 'emulator', tensorCores: true, suspects: tensorSuspects });
