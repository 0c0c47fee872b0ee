import { packagePath } from '../codegen/packageRoot.js';
import { int4Hadamard, int8, kivi4 } from '../dsl/index.js';
import { EmulatorDevice } from '../runtime/index.js';
import { loadActivations } from '../runtime/report/activations.js';
import { policyTable, policyText } from './policyTable.js';

// Prints the table of docs/policies.md: npx tsx scripts/policies.ts
const activations = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
const device = await EmulatorDevice.open({ checks: 'none' });
const { layers } = activations;
console.log(policyText(await policyTable(device, { schemes: [int8, int4Hadamard, kivi4], activations, layers })));
await device.close();
