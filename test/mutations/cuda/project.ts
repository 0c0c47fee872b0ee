import { drivePack, driveProject, driveScale } from '../drivers/project.js';
import type { Suspect } from '../mutant.js';
import { changed, without } from './text.js';

const stage = 'project';
const allocated = { stage: 'project, allocated widths', shape: 'full' } as const;

export const projectSuspects: readonly Suspect[] = [
  {
    ...allocated,
    entry: 'project_keys',
    drive: driveProject,
    mutants: [
      without('the first stage is filled'),
      without('the next stage is filled, and this one has been used'),
      without("every thread's maxima are there"),
      without('the maxima have been read'),
      without("every thread's sums are there"),
      changed('no mask of tokens past the last', 'if (token >= middle) return 0.0f;', '', 'outside'),
      changed('coefficients of tokens past the last', 'if (token < middle && first', 'if (first', 'outside'),
      changed('no mask of components past the last', 'component < RANK ? columns', 'true ? columns', 'outside'),
      changed('the last channels left out', 'right, 0, WIDTH, centred', 'right, 0, WIDTH - 16, centred'),
      changed('weights forgotten', 'weights[channel] * (', '('),
      changed(
        'the mean is weighed less',
        '(plain[token * WIDTH + channel] - mean[channel])',
        'plain[token * WIDTH + channel] - mean[channel]',
      ),
      changed('terms along the wrong axis', 'left_along_terms ? i % depth', 'left_along_terms ? i / depth', 'outside'),
      changed('maxima of signed numbers', 'fmaxf(largest, fabsf(total[r][c]))', 'fmaxf(largest, total[r][c])'),
      changed(
        'sums start with the second row',
        'u32 row = 0; row < 16; ++row) sum',
        'u32 row = 1; row < 16; ++row) sum',
      ),
    ],
  },
  {
    ...allocated,
    entry: 'scale_keys',
    drive: driveScale,
    mutants: [
      changed(
        'the last tile, which is not full, left out',
        '(middle + TILE_TOKENS - 1) / TILE_TOKENS',
        'middle / TILE_TOKENS',
      ),
      changed('guard off by one', 'if (word >= RANK / 2) return;', 'if (word > RANK / 2) return;', 'outside'),
      changed('no guard against an empty middle', 'tokens > 0 ? tokens : 1u', 'tokens'),
      changed('no clamp to f16', 'fminf(step, 65504.0f)', 'step'),
      changed('widths of the wrong group', '+ word / 8]', '+ word / 16]'),
      changed('one bit as a range', 'step = 2.0f * mean_abs;', 'step = max_abs;'),
      changed('a step of half the range', 'float(1u << bits)', 'float((1u << bits) - 1u)'),
      changed('scales of two components swapped', 'pack_half2(low, high)', 'pack_half2(high, low)'),
    ],
  },
  {
    ...allocated,
    entry: 'pack_keys',
    drive: drivePack,
    mutants: [
      without("every group's place is known"),
      changed("a straddling field's second word ignored", 'position + bits > begin', 'position >= begin'),
      changed('bits lost between words', 'value >> (begin - position)', 'value >> (begin - position + 1u)'),
      changed('wrong first bit', 'widths[group] >> 4;', 'widths[group] >> 4 & ~31u;'),
      changed('a group that began in the word before skipped', 'first + bits * 16 <= word * 32', 'first < word * 32'),
      changed('rounded to the nearest', 'floorf(coefficient / step)', 'rintf(coefficient / step)'),
      changed(
        'codes not clamped',
        'fminf(fmaxf(floorf(coefficient / step), -float(half_)), float(half_ - 1))',
        'floorf(coefficient / step)',
      ),
      changed('codes clamped as symmetric ones', '-float(half_))', '-float(half_ - 1))'),
      changed('components of the first group repeated', 'group * 16 + field;', 'field;'),
      changed(
        'no guard of the last block',
        'if (index >= sequence[AT_MIDDLE_TOKENS] * KEY_ROW_WORDS) return;',
        '',
        'outside',
      ),
      changed('wrong stride of rows', 'index / KEY_ROW_WORDS * RANK', 'index / KEY_ROW_WORDS * (RANK + 1)', 'outside'),
    ],
  },
  {
    stage,
    entry: 'scale_keys',
    drive: driveScale,
    mutants: [
      changed('the first component of a group left out', 'component - 16u < 16u', 'component - 17u < 15u'),
      changed('the range of the wrong width', 'max_abs / 31.0f', 'max_abs / 32.0f'),
    ],
  },
  {
    stage,
    entry: 'pack_keys',
    drive: drivePack,
    mutants: [
      changed(
        "a straddling field's second word ignored",
        'packed = packed | (value >> (first_bit - position));\n      }\n    }\n  }\n  return packed;\n}\n\n// dsl/packing.ts:11 packWord, bits = 2',
        '}\n    }\n  }\n  return packed;\n}\n\n// dsl/packing.ts:11 packWord, bits = 2',
      ),
      changed(
        'rounded down',
        'code = fminf(fmaxf(rintf(coefficient / scale), -31.0f), 31.0f);',
        'code = fminf(fmaxf(floorf(coefficient / scale), -31.0f), 31.0f);',
      ),
      changed('wrong first word of the second group', 'if (word - 3u < 1u) {', 'if (word - 2u < 1u) {'),
    ],
  },
];
