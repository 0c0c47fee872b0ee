import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import type { PrefillDraw } from '../../runtime/verify/caseDraws.js';
import type { Judge } from '../../runtime/verify/judge.js';
import { prefillCase } from '../../runtime/verify/prefillCase.js';
import { promptTaps, Tap } from '../../runtime/verify/tap.js';
import { openDevice, targetOf } from '../stages/harness.js';
import { tiltCases } from '../stages/tiltCases.js';
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
  // Two range blocks and three rows of codes, none of the last ones full.
  const middle = 141;
  const { sinks, window } = kernels.geometry.scheme;
  await prefillCase(
    kernels,
    kernels.device as Tap,
    { ...prompt, tokens: sinks + middle + window },
    { judge, bar: 1e-5, halves: false },
  );
}

interface Suspect {
  /** Of `tiltCases`. */
  readonly scheme: string;
  readonly entry: string;
  readonly drive: Drive;
  readonly mutants: readonly Mutant[];
}

const [packed, , apart] = tiltCases.map(({ name }) => name) as [string, string, string];

const suspects: readonly Suspect[] = [
  {
    scheme: packed,
    entry: 'tilt_weigh',
    drive: drivePrompt,
    mutants: [without('all weights are there: the two channels of a word are of two pairs')],
  },
  {
    scheme: packed,
    entry: 'tilt_widths',
    drive: drivePrompt,
    mutants: [
      without('every thread has tried its candidates'),
      changed('the best of the first threads', 'for (u32 i = 1; i < THREADS', 'for (u32 i = 1; i < 8'),
    ],
  },
  {
    scheme: packed,
    entry: 'tilt_allocate',
    drive: drivePrompt,
    mutants: [
      without('the head before is complete'),
      without('all choices are known'),
      without("every head's nibbles are known"),
      changed('slots from the last field on', 'bits_at[other] < bits_at[group]', 'bits_at[other] > bits_at[group]'),
    ],
  },
  {
    scheme: packed,
    entry: 'tilt_steps',
    drive: drivePrompt,
    mutants: [
      without('both steps of every word are there'),
      changed(
        'blocks from the first token of the middle',
        'max(blockIdx.x * RANGE_BLOCK, sinks)',
        'blockIdx.x * RANGE_BLOCK + sinks',
      ),
    ],
  },
  {
    scheme: packed,
    entry: 'tilt_pack_keys',
    drive: drivePrompt,
    mutants: [
      changed('the steps of the first range block', 'position / RANGE_BLOCK * KV_HEADS + head', 'head'),
      changed('positions of the low nibbles twice', '32 + in_row, 4)', 'in_row, 4)'),
      changed(
        'codes of sinks',
        'if (position < sinks || position >= end) return;',
        'if (position >= end) return;',
        'outside',
      ),
    ],
  },
  {
    scheme: packed,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [
      without('the queries are turned'),
      changed('the angle of the start of a tile', 'make_float2(start[0], -start[1])', 'make_float2(1.0f, 0.0f)'),
      changed('steps of the first range block', 'position / RANGE_BLOCK', '0'),
      changed('one query for all tiles', 'min((first / TILE + 1) * TILE, middle_to)', 'middle_to'),
      changed('gains of the stream too', 'start_pass();\n  attend_middle();', 'start_pass();'),
      changed(
        'values of the next position',
        'value_at(codes, tables, position, channel)',
        'value_at(codes, tables, position + 1, channel)',
      ),
      changed('nibbles of the low positions', '? in_row / 32 * 4 : 0', '? 0 : 0'),
      changed(
        'a mean without weights',
        'weight * half_at(mean, kv_head * HEAD_DIM + pair)',
        'half_at(mean, kv_head * HEAD_DIM + pair)',
      ),
    ],
  },
  {
    scheme: apart,
    entry: 'attend',
    drive: driveAttend(1e-5),
    mutants: [changed('values by position', 'position - sinks_end, kv_head, channel', 'position, kv_head, channel')],
  },
  {
    scheme: packed,
    entry: 'decompress',
    drive: driveDecompress,
    mutants: [
      without('the components of the key are there'),
      without('the key about its mean is there, its channels in the order of pairs'),
      without('both channels of every word are there'),
      without('all channels have been read before the value takes their place'),
      changed('a place counted from the middle', 'token % TILE', '(token - end.sinks) % TILE'),
      changed('no gain', 'half_at(cache + sequence[AT_VALUE_GAINS], head * HEAD_DIM + channel) * coded', 'coded'),
    ],
  },
  {
    scheme: apart,
    entry: 'decompress',
    drive: driveDecompress,
    mutants: [without('all pairs have been read before they are put where the model has them')],
  },
];

describe('planted faults in tile-rotated keys, CUDA', () => {
  let device: Device;
  const generated = new Map<string, GeneratedKernels>();
  beforeAll(async () => {
    device = await openDevice('emulator');
    for (const { name, scheme, model } of tiltCases) {
      generated.set(name, await generate(scheme, model, targetOf(device)));
    }
  });
  afterAll(() => device?.close());

  const run = ({ scheme, entry, drive }: Suspect, mutant?: Mutant) => {
    const good = generated.get(scheme)!;
    const kernels = mutant ? plant(good, entry, mutant) : good;
    const entries = drive === drivePrompt ? undefined : [entry];
    // What is fitted is held to what it was fitted to.
    const tap = new Tap(device, { bindings: promptTaps, apart: false });
    return reportOf(() => LoadedKernels.load(tap, kernels, entries), drive);
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
