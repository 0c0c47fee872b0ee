import type { ConformanceCase } from './bench.js';
import { launchCases } from './launches.js';
import { lifetimeCases } from './lifetime.js';
import { memoryCases } from './memory.js';
import { recordingCases } from './recording.js';
import { refusalCases } from './refusals.js';

/** Everything that `runtime/device.ts` promises of a device, in no framework: `suite.ts` runs it as tests. */
export const conformanceCases: readonly ConformanceCase[] = [
  ...memoryCases,
  ...launchCases,
  ...refusalCases,
  ...recordingCases,
  ...lifetimeCases,
];
