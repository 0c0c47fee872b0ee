import type { Suspect } from '../mutant.js';
import { allocateSuspects } from './allocate.js';
import { attendSuspects } from './attend.js';
import { basisSuspects } from './basis.js';
import { decompressSuspects } from './decompress.js';
import { keySuspects } from './keys.js';
import { massSuspects } from './mass.js';
import { projectSuspects } from './project.js';
import { tokenSuspects } from './tokens.js';
import { unbiasSuspects } from './unbias.js';
import { valueSuspects } from './values.js';
import { weighSuspects } from './weigh.js';

export const wgslSuspects: readonly Suspect[] = [
  ...weighSuspects,
  ...keySuspects,
  ...basisSuspects,
  ...allocateSuspects,
  ...projectSuspects,
  ...valueSuspects,
  ...unbiasSuspects,
  ...tokenSuspects,
  ...massSuspects,
  ...decompressSuspects,
  ...attendSuspects,
];
