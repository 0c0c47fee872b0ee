import type { Suspect } from '../mutant.js';
import { attendSuspects } from './attend.js';
import { basisSuspects } from './basis.js';
import { keySuspects } from './keys.js';
import { tokenSuspects } from './tokens.js';
import { valueSuspects } from './values.js';

export const wgslSuspects: readonly Suspect[] = [
  ...keySuspects,
  ...basisSuspects,
  ...valueSuspects,
  ...tokenSuspects,
  ...attendSuspects,
];
