import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { makeCase } from '../stages/harness.js';
import { driveAttend } from './drivers/attend.js';
import { plant, reporters, reportOf } from './mutant.js';

/** Four tiles of the middle in one block: each of both warpgroups that take tokens gets two. */
const { scheme, model } = makeCase({ heads: 4, kvHeads: 1, headDim: 64, rank: 32, bits: 4, sinks: 2, window: 3 });
const drive = driveAttend(2e-3, 420);
const order = /expected a barrier between two uses|expected a read of bytes written before|expected publish_shared/;

const faults = [
  ['columns not published', '    publish_shared();\n    named_arrive(filled', '    named_arrive(filled', order],
  [
    'columns overwritten before they are read',
    'if (tile >= WARPGROUPS) named_barrier(emptied(group), HANDOVER_THREADS);',
    'if (tile >= WARPGROUPS) named_arrive(emptied(group), HANDOVER_THREADS);',
    order,
  ],
  [
    'columns used before they are there',
    'named_barrier(filled(group), HANDOVER_THREADS);',
    'named_arrive(filled(group), HANDOVER_THREADS);',
    order,
  ],
  [
    'columns given back while products read them',
    '      wait_products(products);\n      if (next < end && half == 1) named_arrive(emptied(group), HANDOVER_THREADS);\n',
    '      if (next < end && half == 1) named_arrive(emptied(group), HANDOVER_THREADS);\n      wait_products(products);\n',
    order,
  ],
  [
    'basis not published',
    '  publish_shared();\n  __syncthreads();  // the basis is in place',
    '  __syncthreads();  // the basis is in place',
    order,
  ],
  ['products used before they are there', '      wait_products(products);\n', '', reporters.reference],
  [
    'merged while the codebook is read',
    'named_barrier(MIDDLE_BARRIER, THREADS);  // codebook and basis, whose place the merge takes, are no longer read\n    store',
    'store',
    order,
  ],
  [
    'tokens outside the share weighed',
    'seen ? score_exponent(scores[set][upper]',
    'true ? score_exponent(scores[set][upper]',
    reporters.reference,
  ],
  ['old sums not rescaled', 'state.weight[set] *= shrink;', '', reporters.reference],
  ['second half turned as the first', 'angles_at(base + STEP_TOKENS)}', 'angles_at(base)}', reporters.reference],
  ['angles past the tables', 'angles + min(position, end - 1) /', 'angles + position /', reporters.outside],
  ['codes read outside the share', 'min(max(position, begin), end - 1) - sinks', 'position - sinks', reporters.outside],
  ['fields without what zero stands for', 'sum * zero_field()', 'sum', reporters.reference],
  [
    'values of the next token',
    '(i % 2 + i / 2 * 8) * VALUE_ROW_WORDS',
    '((i + 1) % 2 + i / 2 * 8) * VALUE_ROW_WORDS',
    reporters.reference,
  ],
] as const;

describe('planted faults in attention that turns queries for slow pairs', () => {
  let device: EmulatorDevice;
  let good: GeneratedKernels;
  beforeAll(async () => {
    device = await EmulatorDevice.open({ checks: 'full', order: 'shuffled' });
    good = await generate(scheme, model, { language: 'cuda', arch: 'sm_90a', tensorCores: true });
  });
  afterAll(() => device?.close());
  const report = (kernels: GeneratedKernels) => reportOf(() => LoadedKernels.load(device, kernels, ['attend']), drive);

  test('without a fault', async () => {
    expect(await report(good)).toBe('nothing');
  });

  test.each(faults)('%s', async (name, text, instead, by) => {
    expect(await report(plant(good, 'attend', { name, text, instead, by: 'reference' }))).toMatch(by);
  });
});
