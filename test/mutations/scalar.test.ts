import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { PrefillDraw } from '../../runtime/verify/caseDraws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { prefillCase } from '../../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../../runtime/verify/tap.js';
import { openDevice, targetOf } from '../stages/harness.js';
import { scalarCases } from '../stages/scalarCases.js';
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

async function drivePrompt(kernels: LoadedKernels, judge: Judge): Promise<void> {
  // A full row of scales and one that is not; several tiles of tokens.
  const middle = 37;
  const { sinks, window } = kernels.geometry.scheme;
  const tap = new Tap(kernels.device, { bindings: promptTaps, apart: false });
  await prefillCase(kernels, tap, { ...prompt, tokens: sinks + middle + window }, { judge, bar: 1e-5, halves: false });
}

interface Suspect {
  /** Of `scalarCases`. */
  readonly scheme: string;
  readonly entry: string;
  readonly drive: Drive;
  readonly mutants: readonly Mutant[];
}

const [turned, kivi, unroped] = scalarCases.map(({ name }) => name) as [string, string, string];

const suspects: readonly Suspect[] = [
  {
    scheme: turned,
    entry: 'turn_keys',
    drive: drivePrompt,
    mutants: [
      without('the last stride is complete'),
      changed('a transform that is not scaled', 'channels[channel] * HADAMARD_SCALE', 'channels[channel]'),
    ],
  },
  {
    scheme: unroped,
    entry: 'turn_keys',
    drive: drivePrompt,
    mutants: [changed('position without the sinks', 'position = sinks + token', 'position = token')],
  },
  {
    scheme: kivi,
    entry: 'scale_keys',
    drive: drivePrompt,
    mutants: [
      without('every slice has its ends'),
      without('every thread has read the ends: sums take their place'),
      without('every slice has its sums'),
      changed('ends of all slices but the last', 'for (u32 i = 0; i < SLICES', 'for (u32 i = 0; i < SLICES - 1'),
      changed('the first channel twice', 'take(place[0], place[to_second]);', 'take(place[0], place[0]);'),
      changed(
        'a last row as long as the others',
        'min(first + KEY_SCALE_TOKENS, middle)',
        'first + KEY_SCALE_TOKENS',
        'outside',
      ),
      changed('a scale from zero', 'fabsf(greatest.x - offset.x)', 'fabsf(greatest.x)'),
    ],
  },
  {
    scheme: turned,
    entry: 'scale_values',
    drive: drivePrompt,
    mutants: [
      changed('the squares of one slice', 'for (u32 i = 1; i < SLICES', 'for (u32 i = 1; i < 1'),
      changed('squares relative to the other block', '/ divisor.x', '/ divisor.y'),
      changed('a second scale where there is none', 'has_second ? scale.y : 0.0f', 'scale.y'),
      changed(
        'a second block where there is none',
        'has_second ? VALUE_SCALE_CHANNELS : 0',
        'VALUE_SCALE_CHANNELS',
        'outside',
      ),
    ],
  },
  {
    scheme: kivi,
    entry: 'pack_keys',
    drive: drivePrompt,
    mutants: [
      changed('no offset', 'vector[channel] - half_at(offsets, place)', 'vector[channel]'),
      changed('the scale of the next row', 'token / KEY_SCALE_TOKENS', '(token + 1) / KEY_SCALE_TOKENS'),
      changed('the channels of the first head', 'token * WIDTH + head * HEAD_DIM', 'token * WIDTH'),
    ],
  },
  {
    scheme: turned,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      changed(
        'a query that is not transformed',
        'transform_heads(head_rows);  // q.k = (Hq).(Hk): the keys stay as they are stored\n    attend_segment(middle_from',
        'attend_segment(middle_from',
      ),
      changed('levels of the stream', 'tables[KEY_LEVELS + level]', 'tables[level]'),
      changed('levels of the keys', 'tables[VALUE_LEVELS + level]', 'tables[KEY_LEVELS + level]'),
    ],
  },
  {
    scheme: kivi,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      changed('the scale of the next row', 'token / KEY_SCALE_TOKENS', '(token + 1) / KEY_SCALE_TOKENS'),
      changed('values in Hadamard space', 'start_pass();\n  attend_middle();', 'attend_middle();\n  start_pass();'),
    ],
  },
  {
    scheme: unroped,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      changed(
        'position without the sinks',
        'angle_at(tables, sinks_end + token, pair)',
        'angle_at(tables, token, pair)',
      ),
      changed('angles past the tables', 'min(first + q * 4 + k, last - 1)', 'first + q * 4 + k', 'outside'),
      changed('one channel of a pair for both', 'kv_head, second_channel)', 'kv_head, first_channel)'),
    ],
  },
  {
    scheme: unroped,
    entry: 'decompress',
    drive: driveDecompress,
    mutants: [
      without('both channels of every word are there'),
      without('all channels have been read before the next ones take their place'),
      changed('position without the sinks', 'angle_at(tables, token, channel)', 'angle_at(tables, row, channel)'),
      changed('the row of a token of the sequence', 'row = token - end.sinks', 'row = token'),
    ],
  },
];

describe('planted faults in scalar codes, CUDA', () => {
  let device: Device;
  const generated = new Map<string, GeneratedKernels>();
  beforeAll(async () => {
    device = await openDevice('emulator');
    for (const { name, scheme, model } of scalarCases) {
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
