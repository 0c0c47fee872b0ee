import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Device } from '../../runtime/device.js';
import { verifyScheme } from '../../runtime/verify/index.js';
import { deviceNames, openDevice } from '../stages/harness.js';
import { signedCases } from '../stages/signedCases.js';

describe.each(deviceNames)('verify on %s of signs of what codes leave', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  test.each(signedCases)(
    '$name passes',
    async ({ scheme, model }) => {
      const lines: string[] = [];
      const options = { cases: 14, seed: 3, onProgress: (line: string) => lines.push(line) };
      expect(await verifyScheme(device, scheme, model, options)).toMatchObject({ cases: 14, failed: 0, failures: [] });
      for (const kind of ['attend', 'decompress', 'append', 'prefill']) expect(lines.join()).toContain(`(${kind})`);
    },
    120_000,
  );
});
