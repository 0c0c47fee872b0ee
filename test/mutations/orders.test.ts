import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EmulatorDevice, type EmulatorOptions } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { targetOf } from '../stages/harness.js';
import { cudaSuspects, tensorSuspects } from './cuda/index.js';
import { reportOf } from './mutant.js';
import { generateShapes, type Shapes } from './support.js';

/** Orders beside the shuffled one of the other tests; even seeds hold a block after its atomic, odd ones before it. */
const orders: readonly (readonly [string, EmulatorOptions])[] = [
  ['descending', { order: 'descending' }],
  ['block 0 and thread 0 starved', { order: 'starved', seed: 0 }],
  ['block 1 and thread 3 starved', { order: 'starved', seed: 3 }],
  ['block 2 starved, threads descending', { order: { blocks: 'starved', threads: 'descending' }, seed: 4 }],
];

describe.each([
  ['CUDA cores', false, cudaSuspects],
  ['tensor cores', true, tensorSuspects],
] as const)('kernels without faults, %s', (_, tensorCores, suspects) => {
  describe.each(orders)('%s', (_name, options) => {
    let device: EmulatorDevice;
    let shapes: Shapes;
    beforeAll(async () => {
      device = await EmulatorDevice.open(options);
      shapes = await generateShapes(targetOf(device, { tensorCores }));
    });
    afterAll(() => device?.close());

    test.each(suspects)(
      '$stage, $entry is right and has no race',
      async ({ entry, shape = 'plain', beside = [], drive }) => {
        expect(await reportOf(() => LoadedKernels.load(device, shapes[shape], [entry, ...beside]), drive)).toBe(
          'nothing',
        );
      },
    );
  });
});
