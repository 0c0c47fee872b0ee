import type { Stage } from '../stage.js';
import { appendStage } from './append.js';
import { attendStage } from './attend.js';
import { basisStage } from './basis.js';
import { codebookStage } from './codebook.js';
import { decompressStage } from './decompress.js';
import { exactStage } from './exact.js';
import { gramStage } from './gram.js';
import { projectStage } from './project.js';
import { unropeStage } from './unrope.js';
import { valuesStage } from './values.js';

/** Every stage of the four-segment cache, in the order in which a prompt meets them. */
export const stages: readonly Stage[] = [
  exactStage,
  unropeStage,
  gramStage,
  basisStage,
  projectStage,
  valuesStage,
  codebookStage,
  appendStage,
  decompressStage,
  attendStage,
] as readonly Stage[];
