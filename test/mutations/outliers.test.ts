import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { PrefillDraw } from '../../runtime/verify/caseDraws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { prefillCase } from '../../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../../runtime/verify/tap.js';
import { openDevice, targetOf } from '../stages/harness.js';
import { outlierCases } from '../stages/outlierCases.js';
import { changed, without } from './cuda/text.js';
import { driveAttend } from './drivers/attend.js';
import { driveDecompress } from './drivers/decompress.js';
import { type Mutant, plant, reporters, reportOf } from './mutant.js';

const prompt: Omit<PrefillDraw, 'tokens'> = {
  keys: 'normal',
  values: 'normal',
  seed: 7,
  query: { queries: 1, splits: 2, reach: 1, aligned: false },
};

type Drive = (kernels: LoadedKernels, judge: Judge) => Promise<void>;

/** More tokens and heads than one block counts, so that its threads take several each. */
async function drivePrompt(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const { sinks, window } = kernels.geometry.scheme;
  const tap = new Tap(kernels.device, { bindings: promptTaps, apart: false });
  await prefillCase(kernels, tap, { ...prompt, tokens: sinks + 91 + window }, { judge, bar: 1e-5, halves: false });
}

interface Suspect {
  /** Of `outlierCases`. */
  readonly scheme: string;
  readonly entry: string;
  readonly drive: Drive;
  readonly mutants: readonly Mutant[];
}

const [unroped, turned, alone] = outlierCases.map(({ name }) => name) as [string, string, string];

const suspects: readonly Suspect[] = [
  {
    scheme: unroped,
    entry: 'scale_keys',
    drive: drivePrompt,
    mutants: [
      without('every slice has counted'),
      without('the counts of the first round are zero'),
      changed(
        'counts that are not zero',
        'counts[(round + 1) % 3][own][i] = 0',
        'counts[(round + 3) % 3][own][i] = 0',
        'race or unwritten',
      ),
      without('every slice has its sums'),
      changed('one number fewer left out', 'if (below[0] <= left_out)', 'if (below[0] < left_out)'),
      changed('one number more left out above', 'count - min(count, left_out + 1)', 'count - min(count, left_out + 2)'),
      changed('keys in the order of bits', '(bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u', 'bits'),
      changed('the greatest number of the other block', 'if (below[3] <= most_below)', 'if (below[1] <= most_below)'),
      changed('a bit too few', 'round < 32;', 'round < 17;'),
    ],
  },
  {
    scheme: turned,
    entry: 'scale_keys',
    drive: drivePrompt,
    mutants: [changed('squares of what is left out', 'fminf(fmaxf(x, least.x), greatest.x)', 'x')],
  },
  {
    scheme: unroped,
    entry: 'sparse_keys',
    drive: drivePrompt,
    mutants: [
      changed('the first ones found', 'moves = moves || size > sizes[i];', 'moves = moves || sizes[i] == 0.0f;'),
      changed('the last one only', 'size = smaller;\n', 'size = 0.0f;\n'),
      changed('one end of the range', 'difference >= scale * RANGE_LEAST &&', ''),
      changed('a residual to the offset', 'vector[channel] - (offset + scale * unit)', 'vector[channel] - offset'),
      changed('the channel of the layer', 'u32 entry = channel |', 'u32 entry = (head * HEAD_DIM + channel) |'),
      changed('all that are found are counted', 'found - min(found, KEY_OUTLIER_CAP)', 'found'),
      changed('codes of the first head', 'index * KEY_HEAD_WORDS', '(index - head) * KEY_HEAD_WORDS'),
    ],
  },
  {
    scheme: turned,
    entry: 'sparse_values',
    drive: drivePrompt,
    mutants: [
      changed('the scale of the first row', 'u32 row = index / KV_HEADS / VALUE_SCALE_TOKENS', 'u32 row = 0'),
      changed('no offset', 'half_at(offsets, place);', '0.0f;'),
    ],
  },
  {
    scheme: unroped,
    entry: 'count_keys',
    drive: drivePrompt,
    mutants: [
      without('the sums that are added are there'),
      changed('one number a thread', 'i < count; i += THREADS', 'i < THREADS; i += THREADS'),
      changed('the count of values', 'counts[0] = sums[0]', 'counts[1] = sums[0]'),
    ],
  },
  {
    scheme: unroped,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      changed('one outlier of a key', 'i < KEY_OUTLIER_CAP', 'i < KEY_OUTLIER_CAP - 1'),
      changed(
        'outliers of the first head',
        '(token * KV_HEADS + head) * VALUE_OUTLIER_CAP',
        'token * KV_HEADS * VALUE_OUTLIER_CAP',
      ),
    ],
  },
  {
    scheme: alone,
    entry: 'decompress',
    drive: driveDecompress,
    mutants: [changed('the residual instead', ') x += half_to_float', ') x = half_to_float')],
  },
];

describe('planted faults in what is kept beside codes, CUDA', () => {
  let device: Device;
  const generated = new Map<string, GeneratedKernels>();
  beforeAll(async () => {
    device = await openDevice('emulator');
    for (const { name, scheme, model } of outlierCases) {
      generated.set(name, await generate(scheme, model, targetOf(device)));
    }
  });
  afterAll(() => device?.close());

  const run = ({ scheme, entry, drive }: Suspect, mutant?: Mutant) => {
    const good = generated.get(scheme)!;
    const kernels = mutant ? plant(good, entry, mutant) : good;
    const entries = drive === drivePrompt ? undefined : [entry];
    return reportOf(() => LoadedKernels.load(device, kernels, entries), drive);
  };

  describe.each(suspects.map((suspect) => [suspect.entry, suspect.scheme, suspect] as const))('%s, %s', (...row) => {
    const suspect = row[2];
    test.concurrent('without a fault', async () => {
      expect(await run(suspect)).toBe('nothing');
    });

    test.concurrent.each(suspect.mutants.map((mutant) => [mutant.name, mutant] as const))('%s', async (_, mutant) => {
      expect(await run(suspect, mutant)).toMatch(reporters[mutant.by]);
    });
  });
});
