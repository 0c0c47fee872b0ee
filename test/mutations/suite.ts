import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { type DeviceName, openDevice, targetOf } from '../stages/harness.js';
import { type Mutant, plant, reporters, reportOf, type Suspect } from './mutant.js';
import { generateShapes, type Shapes } from './support.js';
import { unseen } from './unseen.js';

export interface Schedule {
  readonly name: keyof typeof unseen;
  readonly deviceName: DeviceName;
  readonly tensorCores: boolean;
  readonly suspects: readonly Suspect[];
}

/** Plants every fault of a schedule, each in kernels of its own, and asks for its report. */
export function faultSuite({ name, deviceName, tensorCores, suspects }: Schedule): void {
  describe(`planted faults in ${name}`, () => {
    let device: Device;
    let shapes: Shapes;
    beforeAll(async () => {
      device = await openDevice(deviceName);
      shapes = await generateShapes(targetOf(device, { tensorCores }));
    });
    afterAll(() => device?.close());

    const run = ({ entry, shape = 'plain', beside = [], drive }: Suspect, mutant?: Mutant) => {
      const kernels = mutant ? plant(shapes[shape], entry, mutant) : shapes[shape];
      return reportOf(() => LoadedKernels.load(device, kernels, [entry, ...beside]), drive);
    };

    // Names as plain words: as fields of an object they would be cut short.
    describe.each(suspects.map((suspect) => [suspect.stage, suspect.entry, suspect] as const))(
      '%s, %s',
      (_stage, _entry, suspect) => {
        test.concurrent('without a fault', async () => {
          expect(await run(suspect)).toBe('nothing');
        });

        test.concurrent.each(suspect.mutants.map((mutant) => [mutant.name, mutant] as const))(
          '%s',
          async (_, mutant) => {
            expect(await run(suspect, mutant)).toMatch(reporters[mutant.by]);
          },
        );
      },
    );

    test.concurrent.each(unseen[name].map((row) => [row.entry, row.mutant.name, row.why, row] as const))(
      'not seen: %s, %s (%s)',
      async (entry, _name, _why, { mutant, shape }) => {
        const suspect = suspects.find((candidate) => candidate.entry === entry && candidate.shape === shape)!;
        expect(await run(suspect, mutant)).toBe('nothing');
      },
    );
  });
}
