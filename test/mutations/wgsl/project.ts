import { drivePack, driveProject, driveScale } from '../drivers/project.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const shared = { stage: 'project, allocated widths', shape: 'full' } as const;

export const projectSuspects: readonly Suspect[] = [
  {
    ...shared,
    entry: 'project_keys',
    drive: driveProject,
    mutants: [
      without('The tiles are complete before any thread reads them.'),
      changed('weights forgotten', 'weights[channel] * (', '('),
      changed('maxima of signed numbers', 'abs(total)', 'total'),
    ],
  },
  {
    ...shared,
    entry: 'scale_keys',
    drive: driveScale,
    mutants: [
      changed('widths of the wrong group', '+ word / 8u]', '+ word / 16u]'),
      changed(
        'no guard against an empty middle',
        'f32(max(sequence[AT_MIDDLE_TOKENS], 1u))',
        'f32(sequence[AT_MIDDLE_TOKENS])',
      ),
      changed('one bit as a range', 'step = 2.0 * mean_abs;', 'step = max_abs;'),
    ],
  },
  {
    ...shared,
    entry: 'pack_keys',
    drive: drivePack,
    mutants: [
      changed("a straddling field's second word ignored", 'position + bits > begin', 'position >= begin'),
      changed('wrong first bit', 'widths[group] >> 4u;', '(widths[group] >> 4u) & 0xffffffe0u;'),
      changed('rounded to the nearest', 'clamp(floor(coefficient / step)', 'clamp(round(coefficient / step)'),
    ],
  },
];
