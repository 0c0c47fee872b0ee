import type { Stage } from '../stage.js';
import { allocateStage } from './allocate.js';
import { appendStage } from './append.js';
import { attendStage } from './attend.js';
import { basisStage } from './basis.js';
import { codebookStage } from './codebook.js';
import { copyStage } from './copy.js';
import { decompressStage } from './decompress.js';
import { exactStage } from './exact.js';
import { gramStage } from './gram.js';
import { observeStage } from './observe.js';
import { projectStage } from './project.js';
import { unbiasStage } from './unbias.js';
import { unropeStage } from './unrope.js';
import { valuesStage } from './values.js';
import { weighStage } from './weigh.js';

/** Every stage of the four-segment cache, in the order in which a prompt meets them; some have no kernel for some schemes. */
export const stages: readonly Stage[] = [
  exactStage,
  observeStage,
  weighStage,
  unropeStage,
  gramStage,
  basisStage,
  allocateStage,
  projectStage,
  valuesStage,
  codebookStage,
  unbiasStage,
  appendStage,
  copyStage,
  decompressStage,
  attendStage,
] as readonly Stage[];
