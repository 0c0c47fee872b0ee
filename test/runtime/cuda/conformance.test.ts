import { rmSync } from 'node:fs';
import { afterAll, describe, test } from 'vitest';
import { CudaDevice } from '../../../runtime/cuda/cudaDevice.js';
import { conformance } from '../conformance/suite.js';
import { buildFakes } from './fake.js';

const { folder, libcuda, libnvrtc, missing } = await buildFakes();
process.env.KVFORGE_LIBCUDA = libcuda;
process.env.KVFORGE_LIBNVRTC = libnvrtc;
afterAll(() => rmSync(folder, { recursive: true }));

if (missing === undefined) {
  conformance('a CUDA device over a fake driver', () => CudaDevice.open({ cache: folder }));
} else {
  describe('a CUDA device over a fake driver', () => {
    test('conformance', (context) => context.skip(missing));
  });
}
