import { faultSuite } from './suite.js';
import { wgslSuspects } from './wgsl/index.js';

faultSuite({ name: 'WGSL', deviceName: 'webgpu', tensorCores: false, suspects: wgslSuspects });
