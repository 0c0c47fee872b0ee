import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { makeCase } from '../stages/harness.js';
import { driveAttend } from './drivers/attend.js';
import { plant, reporters, reportOf } from './mutant.js';

/** Nine tiles of the middle in one block: each of three warpgroups that take tokens gets three, so that it uses a slot again. */
const { scheme, model } = makeCase({ heads: 4, kvHeads: 1, headDim: 64, rank: 32, bits: 4, sinks: 2, window: 3 });
const drive = driveAttend(2e-3, 1100);
const order = /expected a barrier between two uses|expected a read of bytes written before|expected publish_shared/;

const scored = `    score_slow_pairs(scores, turned_sums, slot, first % SPLIT_TILE + row);
    const u32 half = first % SPLIT_TILE / STEP_TOKENS;
    add_fast_pairs(scores, fast_sums, slot + SLOT_FAST_QUERIES + half * FAST_QUERY_BYTES, row);
`;
const givenBack = `    // The producer waits for this where it has another tile for the slot.
    if (half == 1 && first + STEP_TOKENS + SPLIT_TILE * (2 * WARPGROUPS - 1) < end) {
      named_arrive(emptied(group, parity), HANDOVER_THREADS);
    }
`;

const faults = [
  ['columns not published', '    publish_shared();\n    named_arrive(filled', '    named_arrive(filled', order],
  [
    'columns overwritten before they are read',
    'if (tile >= 2 * WARPGROUPS) named_barrier(emptied(group, parity), HANDOVER_THREADS);',
    'if (tile >= 2 * WARPGROUPS) named_arrive(emptied(group, parity), HANDOVER_THREADS);',
    order,
  ],
  [
    'columns used before they are there',
    'named_barrier(filled(group, parity), HANDOVER_THREADS);',
    'named_arrive(filled(group, parity), HANDOVER_THREADS);',
    order,
  ],
  [
    'columns given back while scores read them',
    scored + givenBack,
    givenBack.replaceAll('half', 'first % SPLIT_TILE / STEP_TOKENS') + scored,
    order,
  ],
  [
    'basis not published',
    '  publish_shared();\n  __syncthreads();  // the basis is where products read it',
    '  __syncthreads();  // the basis is where products read it',
    order,
  ],
  ['products used before they are there', '    wait_products(turned_sums);\n', '', reporters.reference],
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
  [
    'codes used before they are there',
    '    cp_async_wait<1>();  // the codes are there, if not the indices\n',
    '',
    order,
  ],
  ['a column without its mean', '+ mean.x) * function.x', ') * function.x', reporters.reference],
  [
    'values of the next token',
    '(lane_id() % 4 * 2 + i % 2 + i / 2 * 8) * VECTORS',
    '(lane_id() % 4 * 2 + (i + 1) % 2 + i / 2 * 8) * VECTORS',
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
