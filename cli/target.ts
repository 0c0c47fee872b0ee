import type { TunableChoice } from '../codegen/generate.js';
import { KvforgeError } from '../dsl/errors.js';
import { architectures, type Target } from '../dsl/stage.js';
import { stageNames } from '../dsl/stages/index.js';
import { type TargetFacts, targetFor } from '../runtime/targetFor.js';
import { UsageError } from './output.js';
import { oneOfNames, wholeNumber } from './values.js';

/** Options that choose how kernels are written, the same wherever kernels are generated. */
export interface SchedulingOptions {
  readonly arch?: string;
  readonly plain?: true;
  readonly f16?: true;
  readonly subgroups?: true;
  readonly subgroupMatrices?: true;
  readonly workgroupBytes?: string;
  readonly set: readonly string[];
}

/** What every WebGPU device has. */
const leastWorkgroupBytes = 16384;
/** What GPUs with subgroup matrices have. */
const matrixWorkgroupBytes = 49152;

const foreignTo = {
  cuda: {
    f16: '--f16',
    subgroups: '--subgroups',
    subgroupMatrices: '--subgroup-matrices',
    workgroupBytes: '--workgroup-bytes',
  },
  wgsl: { arch: '--arch', plain: '--plain' },
} as const;

/**
 * The target of a language that the options describe.
 *
 * @throws UsageError for an option of the other language, or for one without those that it needs
 */
export function targetOf(language: Target['language'], options: SchedulingOptions): Target {
  for (const [name, option] of Object.entries(foreignTo[language])) {
    if (options[name as keyof SchedulingOptions] !== undefined) {
      throw new UsageError(`${option} does not apply to ${language} kernels`, 'Leave it out.');
    }
  }
  if (language === 'wgsl') {
    const [f16, subgroups] = [options.f16 === true, options.subgroups === true];
    const usual = options.subgroupMatrices === true ? matrixWorkgroupBytes : leastWorkgroupBytes;
    const workgroupBytes = wholeNumber('--workgroup-bytes', options.workgroupBytes ?? String(usual), {
      from: leastWorkgroupBytes,
      to: 2 ** 20,
    });
    if (options.subgroupMatrices !== true) return { language, f16, subgroups, workgroupBytes };
    if (!f16 || !subgroups) {
      throw new UsageError('--subgroup-matrices needs --f16 and --subgroups', 'Give all three.');
    }
    return { language, f16, subgroups, subgroupMatrices: true, workgroupBytes };
  }
  const arch = oneOfNames('--arch', options.arch ?? 'sm_80', architectures);
  return { language, arch, tensorCores: options.plain !== true };
}

/**
 * The target that suits a device, unless the options say otherwise: those of WebGPU describe all of the target, as for
 * `generate`; on CUDA the architecture stays that of the GPU unless it is named.
 */
export function targetOn(device: TargetFacts, options: SchedulingOptions): Target {
  const own = targetFor(device);
  if (own.language === 'cuda') return targetOf('cuda', { ...options, arch: options.arch ?? own.arch });
  const { arch, plain, f16, subgroups, subgroupMatrices, workgroupBytes } = options;
  const given = [arch, plain, f16, subgroups, subgroupMatrices, workgroupBytes].some((option) => option !== undefined);
  return given ? targetOf('wgsl', options) : own;
}

/** The options with which `generate` and `verify` write for a target. */
export function optionsOf(target: Target): string {
  if (target.language === 'cuda') return `--arch ${target.arch}${target.tensorCores ? '' : ' --plain'}`;
  const flags = [
    target.f16 && '--f16',
    target.subgroups && '--subgroups',
    target.subgroupMatrices === true && '--subgroup-matrices',
    `--workgroup-bytes ${target.workgroupBytes}`,
  ];
  return flags.filter(Boolean).join(' ');
}

/** `attend.warps=8` and its like, by stage; what a stage may take is checked where it is used. */
export function tunablesOf(settings: readonly string[]): TunableChoice {
  const choice: Record<string, Record<string, number>> = {};
  const names = stageNames;
  for (const setting of settings) {
    const [, stage, tunable, value] = /^([A-Za-z]+)\.([A-Za-z]\w*)=(\d{1,9})$/.exec(setting) ?? [];
    if (stage === undefined) {
      throw new UsageError(
        `--set: expected stage.tunable=number, got ${JSON.stringify(setting)}`,
        'For example: --set attend.warps=8.',
      );
    }
    if (!names.includes(stage)) {
      throw new KvforgeError('wrong-use', {
        at: `--set ${setting}`,
        expected: `a stage of ${names.join(', ')}`,
        received: stage,
        hint: 'Name the stage before the dot.',
      });
    }
    choice[stage] = { ...choice[stage], [tunable!]: Number(value) };
  }
  return choice;
}
