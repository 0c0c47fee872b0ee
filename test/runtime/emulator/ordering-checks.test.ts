import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { KernelText } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { type Argument, reportOf } from './harness.js';
import { kernel } from './kernels.js';

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open();
}, 120_000);
afterAll(async () => device.close());

const report = (text: KernelText, args: readonly Argument[], grid?: readonly [number, number, number]) =>
  reportOf(device, text, args, grid);
const words = (length: number): Float32Array => new Float32Array(length).fill(1);

describe('races in a block', () => {
  const exchange = (entry: string, between: string, threads = 64): KernelText =>
    kernel(
      entry,
      ['f32 b'],
      `__shared__ float tile[64];\ntile[threadIdx.x] = 1.0f;\n${between}\nb[threadIdx.x] = tile[threadIdx.x ^ ${threads / 2}];`,
      { threads },
    );

  test('a read with no barrier after the write of another thread', async () => {
    // Thread 0 runs to its end first, so that it is the write of thread 32 that comes late.
    const text = kernel(
      'late',
      ['f32 b'],
      '__shared__ float tile[64];\nif (threadIdx.x < 32) tile[threadIdx.x] = 1.0f;\nif (threadIdx.x >= 32) b[threadIdx.x] = tile[threadIdx.x - 32];',
      { threads: 64 },
    );
    expect(await report(text, [64])).toBe(
      'late.cu:5: expected a barrier between two uses of bytes 0..3 of shared tile, got a read by thread 32 of block (0, 0, 0) of late and a write by thread 0 at late.cu:4. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('__syncthreads() orders a block, __syncwarp() orders a warp only', async () => {
    expect(await report(exchange('ordered', '__syncthreads();'), [64])).toBe('no error');
    expect(await report(exchange('ordered_warp', '__syncwarp();', 32), [64])).toBe('no error');
    const across = kernel(
      'across',
      ['f32 b'],
      '__shared__ float tile[64];\ntile[threadIdx.x] = 1.0f;\n__syncwarp();\nif (threadIdx.x > 31) b[0] = tile[threadIdx.x - 32];',
      { threads: 64 },
    );
    expect(await report(across, [64])).toBe(
      'across.cu:6: expected a barrier between two uses of bytes 0..3 of shared tile, got a read by thread 32 of block (0, 0, 0) of across and a write by thread 0 at across.cu:4. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('a shuffle orders no memory', async () => {
    const text = exchange('shuffled', 'b[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);', 32);
    expect(await report(text, [64])).toBe(
      'shuffled.cu:6: expected a barrier between two uses of bytes 64..67 of shared tile, got a read by thread 0 of block (0, 0, 0) of shuffled and a write by thread 16 at shuffled.cu:4. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('the barrier at the end of a loop that was forgotten', async () => {
    const text = kernel(
      'loop',
      ['f32 b'],
      `__shared__ float tile[64];
float sum = 0.0f;
for (u32 i = 0; i < 2; ++i) {
  tile[threadIdx.x] = 1.0f;
  __syncthreads();
  sum += tile[threadIdx.x ^ 32];
}
b[threadIdx.x] = sum;`,
      { threads: 64 },
    );
    expect(await report(text, [64])).toBe(
      'loop.cu:8: expected a barrier between two uses of bytes 0..3 of shared tile, got a read by thread 32 of block (0, 0, 0) of loop and a write by thread 0 at loop.cu:6. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('bytes of one word are apart, and atomics do not race with each other', async () => {
    const text = kernel(
      'apart',
      ['u32 b'],
      `__shared__ u8 bytes[64];
__shared__ u32 count;
if (threadIdx.x == 0) count = 0;
bytes[threadIdx.x] = 3;
__syncthreads();
atomicAdd(&count, bytes[threadIdx.x ^ 1]);
__syncthreads();
if (threadIdx.x == 0) b[0] = count;`,
      { threads: 64 },
    );
    expect(await report(text, [1])).toBe('no error');
  });

  test('an atomic races with a plain read', async () => {
    const text = kernel(
      'mixed',
      ['u32 b'],
      '__shared__ u32 count;\nif (threadIdx.x == 0) count = 0;\n__syncthreads();\natomicAdd(&count, 1u);\nb[threadIdx.x] = count;',
    );
    expect(await report(text, [32])).toBe(
      'mixed.cu:6: expected a barrier between two uses of bytes 0..3 of shared count, got a write by thread 1 of block (0, 0, 0) of mixed and a read by thread 0 at mixed.cu:7. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('a tile that is copied over while others may still read it', async () => {
    const text = kernel(
      'reuse',
      ['const f32 a', 'f32 b'],
      `__shared__ __align__(16) float tile[128];
cp_async_16(tile + 4 * threadIdx.x, a + 4 * threadIdx.x);
cp_async_commit();
cp_async_wait<0>();
__syncthreads();
b[threadIdx.x] = tile[127 - threadIdx.x];
cp_async_16(tile + 4 * threadIdx.x, a + 4 * threadIdx.x);`,
    );
    expect(await report(text, [words(128), 32])).toBe(
      'reuse.cu:9: expected a barrier between two uses of bytes 400..415 of shared tile, got a write by thread 25 of block (0, 0, 0) of reuse and a read by thread 24 at reuse.cu:8. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });
});

describe('races in a block over a binding', () => {
  test('a barrier between two threads that use one word', async () => {
    const turn = (entry: string, between: string): KernelText =>
      kernel(entry, ['f32 b'], `b[threadIdx.x] = 1.0f;\n${between}\nb[64 + threadIdx.x] = b[63 - threadIdx.x];`, {
        threads: 64,
      });
    expect(await report(turn('turned', '__syncthreads();'), [128])).toBe('no error');
    expect(await report(turn('unordered', '__syncwarp();'), [words(128)])).toBe(
      'unordered.cu:3: expected a barrier between two uses of bytes 128..131 of b, got a write by thread 32 of block (0, 0, 0) of unordered and a read by thread 31 at unordered.cu:5. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('a word that other threads still read when one changes it', async () => {
    const text = kernel(
      'advanced',
      ['u32 b'],
      'const u32 n = b[0];\nif (threadIdx.x == 0) b[0] = n + 1;\nb[1 + threadIdx.x] = n;',
    );
    expect(await report(text, [new Uint32Array(33)])).toBe(
      'advanced.cu:3: expected a barrier between two uses of bytes 0..3 of b, got a read by thread 1 of block (0, 0, 0) of advanced and a write by thread 0 at advanced.cu:4. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });

  test('what an earlier launch or another block did is not held against a thread', async () => {
    const text = kernel('again', ['u32 b'], 'b[blockIdx.x * 32 + (threadIdx.x ^ b[64])] = 1;');
    const input = new Uint32Array(65);
    for (const shift of [0, 1, 5]) {
      input[64] = shift;
      expect(await report(text, [input], [2, 1, 1])).toBe('no error');
    }
  });
});

describe('races between blocks', () => {
  const merge = (entry: string, fence: string, counting: string): KernelText =>
    kernel(
      entry,
      ['f32 partials', 'u32 counter', 'f32 sum'],
      `partials[blockIdx.x] = 1.0f;\n${fence}\nif (${counting}) sum[0] = partials[0] + partials[1];`,
      { threads: 1 },
    );
  const args = (): Argument[] => [2, new Uint32Array(1), 1];

  test('a merge that forgets the fence, or the atomic', async () => {
    const told = (name: string) =>
      `${name}.cu:5: expected no unordered use of bytes 0..3 of partials by two blocks, got a read by thread 0 of block (1, 0, 0) of ${name} and a write by block (0, 0, 0) at ${name}.cu:3. Use atomics, publish by __threadfence() and an atomic, or split the launch.`;
    const last = 'atomicAdd(&counter[0], 1u) == 1';
    expect(await report(merge('merged', '__threadfence();', last), args(), [2, 1, 1])).toBe('no error');
    expect(await report(merge('unfenced', '', last), args(), [2, 1, 1])).toBe(told('unfenced'));
    expect(await report(merge('uncounted', '__threadfence();', 'blockIdx.x == 1'), args(), [2, 1, 1])).toBe(
      told('uncounted'),
    );
  });

  test('two blocks that write one word, and a write after the read of an earlier block', async () => {
    const both = kernel('both', ['u32 b'], 'b[threadIdx.x] = 1;');
    expect(await report(both, [32], [1, 2, 3])).toBe(
      'both.cu:3: expected no unordered use of bytes 0..3 of b by two blocks, got a write by thread 0 of block (0, 1, 0) of both and a write by block (0, 0, 0) at both.cu:3. Use atomics, publish by __threadfence() and an atomic, or split the launch.',
    );
    const later = kernel('later', ['u32 b', 'u32 c'], 'if (blockIdx.x < 2) c[blockIdx.x] = b[0];\nelse b[0] = 7;', {
      threads: 1,
    });
    expect(await report(later, [new Uint32Array(1), 2], [3, 1, 1])).toBe(
      'later.cu:4: expected no unordered use of bytes 0..3 of b by two blocks, got a write by thread 0 of block (2, 0, 0) of later and a read by block (0, 0, 0) at later.cu:3. Use atomics, publish by __threadfence() and an atomic, or split the launch.',
    );
  });
});

describe('collectives', () => {
  test('a barrier in a branch', async () => {
    const text = kernel(
      'divergent',
      ['u32 b'],
      'if (threadIdx.x < 40) {\n  b[threadIdx.x] = 1;\n  __syncthreads();\n} else {\n  __syncthreads();\n}',
      { threads: 64 },
    );
    expect(await report(text, [64])).toBe(
      'divergent.cu:7: expected all threads of the block at one __syncthreads(), got thread 40 of block (0, 0, 0) of divergent here and thread 0 at divergent.cu:5. Move the barrier out of the branch.',
    );
  });

  test('a barrier that some threads have returned before', async () => {
    const early = kernel('early', ['u32 b'], 'if (threadIdx.x == 7) return;\n__syncthreads();\nb[threadIdx.x] = 1;');
    expect(await report(early, [32])).toBe(
      'early.cu:4: expected all threads of the block at one __syncthreads(), got thread 0 of block (0, 0, 0) of early here, while thread 7 has returned. Let every thread reach every barrier; guard the work between them instead.',
    );
    const first = kernel(
      'first_out',
      ['u32 b'],
      'if (threadIdx.x == 0) return;\n__syncthreads();\nb[threadIdx.x] = 1;',
    );
    expect(await report(first, [32])).toBe(
      'first_out.cu:4: expected all threads of the block at one __syncthreads(), got thread 1 of block (0, 0, 0) of first_out here, while thread 0 has returned. Let every thread reach every barrier; guard the work between them instead.',
    );
  });

  test('a shuffle with lanes missing, returned, or not in its mask', async () => {
    const missing = kernel(
      'missing',
      ['u32 b'],
      'if (threadIdx.x != 4) b[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 4);\n__syncthreads();',
    );
    expect(await report(missing, [32])).toBe(
      'missing.cu:3: expected lane 4 of the warp in the collective that names them, got thread 0 of block (0, 0, 0) of missing here, while thread 4 waits at missing.cu:4. Move the collective out of the branch, or name fewer lanes in the mask.',
    );
    const gone = kernel(
      'gone',
      ['u32 b'],
      'if (threadIdx.x > 29) return;\nb[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, 4);',
    );
    expect(await report(gone, [32])).toBe(
      'gone.cu:4: expected lane 30 of the warp in the collective that names them, got thread 0 of block (0, 0, 0) of gone here, while thread 30 has returned. Let all lanes of the mask reach it, or make the mask smaller.',
    );
    const outside = kernel('outside', ['u32 b'], 'b[threadIdx.x] = __ballot_sync(0xffffu, threadIdx.x & 1);');
    expect(await report(outside, [32])).toBe(
      'outside.cu:3: expected a mask that includes the calling lane, got mask 0xffff by thread 16 of block (0, 0, 0) of outside. Call it only in lanes that the mask names.',
    );
  });

  test('mma in a warp that is not whole, and ldmatrix of other memory', async () => {
    const body = 'float d[4] = {0, 0, 0, 0};\nconst u32 a[4] = {0, 0, 0, 0}, b[2] = {0, 0};\nmma_m16n8k16(d, a, b);';
    expect(await report(kernel('partial', ['u32 o'], body, { threads: 40 }), [1])).toBe(
      'partial.cu:5: expected a full warp of 32 threads for mma or ldmatrix, got thread 32 of block (0, 0, 0) of partial, whose warp has fewer. Make the block a multiple of 32 threads.',
    );
    const global = kernel('global_rows', ['const u32 a'], 'u32 r[4];\nldmatrix_x4(r, a);');
    expect(await report(global, [new Uint32Array(4)])).toBe(
      'global_rows.cu:4: expected an address in shared memory, got another by thread 0 of block (0, 0, 0) of global_rows. ldmatrix reads, and cp.async writes, shared memory only.',
    );
    const odd = kernel('odd_rows', ['u32 o'], '__shared__ __align__(16) u32 t[8];\nu32 r[4];\nldmatrix_x4(r, t + 1);');
    expect(await report(odd, [1])).toBe(
      'odd_rows.cu:5: expected an address that is a multiple of 16, got another by thread 0 of block (0, 0, 0) of odd_rows. Align the offset, or access narrower words.',
    );
  });

  test('rows that ldmatrix reads are checked as reads of the lane that names them', async () => {
    const text = kernel(
      'rows',
      ['u32 out'],
      '__shared__ __align__(16) u32 t[128];\nfor (u32 i = 0; i < 4; ++i) t[threadIdx.x * 4 + i] = i;\nu32 r[4];\nldmatrix_x4(r, t + (31 - threadIdx.x) * 4);\nout[threadIdx.x] = r[0];',
    );
    expect(await report(text, [32])).toBe(
      'rows.cu:6: expected a barrier between two uses of bytes 496..511 of shared t, got a read by thread 0 of block (0, 0, 0) of rows and a write by thread 31 at rows.cu:4. Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    );
  });
});
