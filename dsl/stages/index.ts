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
import { latentAppendStage } from './latentAppend.js';
import { latentAttendStage } from './latentAttend.js';
import { latentDecompressStage } from './latentDecompress.js';
import { latentCodesStage, latentExactStage } from './latentEncode.js';
import { massStage } from './mass.js';
import { observeStage } from './observe.js';
import { projectStage } from './project.js';
import { scalarAttendStage } from './scalarAttend.js';
import { scalarKeysStage, scalarValuesStage } from './scalarCodes.js';
import { scalarDecompressStage } from './scalarDecompress.js';
import { tiltAttendStage, tiltDecompressStage } from './tiltAttend.js';
import { tiltKeysStage, tiltValuesStage } from './tiltCodes.js';
import { tiltFitStage, tiltTurnStage, tiltWeighStage } from './tiltFit.js';
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
  massStage,
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
  massStage,
  scalarAttendStage,
] as unknown as readonly GeometryStage[];

/** Stages of a scheme that codes latents. */
const latentStages = [
  latentExactStage,
  latentCodesStage,
  latentAppendStage,
  copyStage,
  latentDecompressStage,
  massStage,
  latentAttendStage,
] as unknown as readonly GeometryStage[];

/** Stages of a scheme with tile-rotated transform coded keys. */
const tiltStages = [
  exactStage,
  tiltWeighStage,
  unropeStage,
  tiltTurnStage,
  tiltFitStage,
  tiltKeysStage,
  tiltValuesStage,
  appendStage,
  copyStage,
  tiltDecompressStage,
  massStage,
  tiltAttendStage,
] as unknown as readonly GeometryStage[];

/** The stages of a family of schemes: kernels are asked for with the geometry of one of that family. */
export const stagesOf: Readonly<Record<Geometry['family'], readonly GeometryStage[]>> = {
  'low-rank': lowRankStages,
  scalar: scalarStages,
  latent: latentStages,
  tilt: tiltStages,
};

/** Names of all stages; those that families share are there once. */
export const stageNames: readonly string[] = [
  ...new Set(Object.values(stagesOf).flatMap((stages) => stages.map(({ name }) => name))),
];
