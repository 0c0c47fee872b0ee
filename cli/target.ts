import type { TunableChoice } from '../codegen/generate.js';
import { KvforgeError } from '../dsl/errors.js';
import { architectures, type Target } from '../dsl/stage.js';
import { stages } from '../dsl/stages/index.js';
import { UsageError } from './output.js';
import { oneOfNames } from './values.js';

/** Options that choose how kernels are written, the same wherever kernels are generated. */
export interface SchedulingOptions {
  readonly arch?: string;
  readonly plain?: true;
  readonly f16?: true;
  readonly subgroups?: true;
  readonly subgroupMatrices?: true;
  readonly set: readonly string[];
}

/** What every WebGPU device has. */
const workgroupBytes = 16384;
/** What GPUs with subgroup matrices have. */
const matrixWorkgroupBytes = 49152;

const foreignTo = {
  cuda: { f16: '--f16', subgroups: '--subgroups', subgroupMatrices: '--subgroup-matrices' },
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
    if (options.subgroupMatrices !== true) return { language, f16, subgroups, workgroupBytes };
    if (!f16 || !subgroups) {
      throw new UsageError('--subgroup-matrices needs --f16 and --subgroups', 'Give all three.');
    }
    return { language, f16, subgroups, subgroupMatrices: true, workgroupBytes: matrixWorkgroupBytes };
  }
  const arch = oneOfNames('--arch', options.arch ?? 'sm_80', architectures);
  return { language, arch, tensorCores: options.plain !== true };
}

/** `attend.warps=8` and its like, by stage; what a stage may take is checked where it is used. */
export function tunablesOf(settings: readonly string[]): TunableChoice {
  const choice: Record<string, Record<string, number>> = {};
  const names = stages.map(({ name }) => name);
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
