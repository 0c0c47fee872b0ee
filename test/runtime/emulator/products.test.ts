import { afterAll, beforeAll, expect, test } from 'vitest';
import type { KernelText } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { reportOf } from './harness.js';
import { kernel } from './kernels.js';

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open();
}, 120_000);
afterAll(async () => device.close());

const report = (text: KernelText) => reportOf(device, text, [32]);

/** One warp stores a matrix of 16 x 16 halves, the other multiplies with it and gives it back. */
function handover(entry: string, replaced = '', replacement = ''): KernelText {
  const body = `u32* tile = reinterpret_cast<u32*>(shared_memory);
const MatrixTiles tiles = matrix_tiles(shared_memory, 256, 128);
const u32 a[4] = {0u, 0u, 0u, 0u};
float d[8];
if (threadIdx.x < 32) {
  for (u32 i = threadIdx.x; i < 128; i += 32) tile[i] = 0u;
  publish_shared();
  named_barrier(1, 64);
  named_barrier(2, 64);
  tile[threadIdx.x] = 1u;
} else {
  named_barrier(1, 64);
  begin_products();
  issue_products(d, a, tiles, false);
  commit_products();
  wait_products(d);
  named_arrive(2, 64);
  b[threadIdx.x - 32] = d[0];
}`;
  expect(body).toContain(replaced);
  return kernel(entry, ['f32 b'], body.replace(replaced, replacement), { threads: 64, dynamic: 512 });
}

test('a matrix that is published, handed over and given back', async () => {
  expect(await report(handover('right'))).toBe('no error');
});

test('a matrix that was not published', async () => {
  expect(await report(handover('unpublished', '  publish_shared();\n'))).toBe(
    'unpublished.cu:15: expected publish_shared() between a store and the products that read it, got products of the warp of thread 32 of block (0, 0, 0) of unpublished, of what thread 0 stored at unpublished.cu:8. Let every thread that stores call publish_shared(), then pass a barrier.',
  );
});

test('a matrix that is given back while products may read it', async () => {
  const early = handover(
    'early',
    '  wait_products(d);\n  named_arrive(2, 64);\n',
    '  named_arrive(2, 64);\n  wait_products(d);\n',
  );
  expect(await report(early)).toBe(
    'early.cu:12: expected a barrier between two uses of bytes 0..3 of shared_memory, got a write by thread 0 of block (0, 0, 0) of early and a read by thread 32 at early.cu:19. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
  );
});

test('a named barrier of number 0, or of threads that others count otherwise', async () => {
  expect(await report(handover('zero', 'named_barrier(1, 64)', 'named_barrier(0, 64)'))).toBe(
    'zero.cu:10: expected a barrier from 1 to 15, by as many threads, in whole warps, as the others there named, got barrier 0 by thread 0 of block (0, 0, 0) of zero. Give all calls the same number of threads; number 0 is __syncthreads().',
  );
  expect(await report(handover('counted', 'named_arrive(2, 64)', 'named_arrive(2, 96)'))).toBe(
    'counted.cu:11: expected a barrier from 1 to 15, by as many threads, in whole warps, as the others there named, got barrier 2 by thread 0 of block (0, 0, 0) of counted. Give all calls the same number of threads; number 0 is __syncthreads().',
  );
});

test('a warp that arrives without waiting has seen nothing of its own lanes', async () => {
  const body = `__shared__ float tile[32];
if (threadIdx.x < 32) {
  tile[threadIdx.x] = 1.0f;
  named_arrive(1, 64);
  b[threadIdx.x] = tile[max(threadIdx.x, 1u) - 1u];
} else {
  named_barrier(1, 64);
}`;
  expect(await report(kernel('arrives', ['f32 b'], body, { threads: 64 }))).toBe(
    'arrives.cu:7: expected a barrier between two uses of bytes 0..3 of shared tile, got a read by thread 1 of block (0, 0, 0) of arrives and a write by thread 0 at arrives.cu:5. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
  );
});
