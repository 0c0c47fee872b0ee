import type { Geometry } from '../geometry.js';
import type { Stage, TunableSpace } from '../stage.js';
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
import { scalarAttendStage } from './scalarAttend.js';
import { scalarKeysStage, scalarValuesStage } from './scalarCodes.js';
import { scalarDecompressStage } from './scalarDecompress.js';
import { unbiasStage } from './unbias.js';
import { unropeStage } from './unrope.js';
import { valuesStage } from './values.js';
import { weighStage } from './weigh.js';

/** A stage that is asked for kernels with a geometry of its own family. */
export type GeometryStage = Stage<TunableSpace, Geometry>;

/** Stages of a scheme with low-rank keys, in the order in which a prompt meets them; some have no kernel for some schemes. */
const lowRankStages = [
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
] as unknown as readonly GeometryStage[];

/** Stages of a scheme that codes every channel by itself. */
const scalarStages = [
  exactStage,
  scalarKeysStage,
  scalarValuesStage,
  appendStage,
  copyStage,
  scalarDecompressStage,
  scalarAttendStage,
] as unknown as readonly GeometryStage[];

/** The stages of a family of schemes: kernels are asked for with the geometry of one of that family. */
export const stagesOf: Readonly<Record<Geometry['family'], readonly GeometryStage[]>> = {
  'low-rank': lowRankStages,
  scalar: scalarStages,
};

/** Names of all stages; those that families share are there once. */
export const stageNames: readonly string[] = [
  ...new Set(Object.values(stagesOf).flatMap((stages) => stages.map(({ name }) => name))),
];
