import { afterAll, beforeAll, describe, test } from 'vitest';
import type { Device } from '../../../runtime/device.js';
import { DeviceBench } from './bench.js';
import { conformanceCases } from './cases.js';

/** Asks of a device what `runtime/device.ts` promises. Call it inside a test file, once per device. */
export function conformance(name: string, open: () => Promise<Device>): void {
  describe(`${name} as a Device`, () => {
    let bench: DeviceBench;
    beforeAll(async () => {
      bench = await DeviceBench.start(open);
    });
    afterAll(() => bench?.device.close());

    for (const { name: demand, run } of conformanceCases) {
      test(demand, async (context) => {
        const reason = await run(bench);
        if (reason !== undefined) context.skip(reason);
      });
    }
  });
}
