import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { KernelText } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { faultOf } from '../conformance/bench.js';
import { type Argument, launch, reportOf } from './harness.js';
import { copyForgets, copyWaitsOne, kernel } from './kernels.js';

let device: EmulatorDevice;
beforeAll(async () => {
  device = await EmulatorDevice.open();
}, 120_000);
afterAll(async () => device.close());

const report = (text: KernelText, args: readonly Argument[], grid?: readonly [number, number, number]) =>
  reportOf(device, text, args, grid);
const words = (length: number): Float32Array => new Float32Array(length).fill(1);

describe('bounds', () => {
  test('a read past the end of a binding', async () => {
    const text = kernel('past_end', ['const f32 a', 'f32 b'], 'const u32 i = threadIdx.x;\nb[i] = a[i] +\n  a[i + 1];');
    expect(await report(text, [words(32), 32])).toBe(
      'past_end.cu:5: expected bytes 0..127 of a, got a read of bytes 128..131 of a by thread 31 of block (0, 0, 0) of past_end. Guard the index, or give it more memory.',
    );
  });

  test('a read before the start, by a vector', async () => {
    const text = kernel(
      'before_start',
      ['const f32 a', 'f32 b'],
      'const float4 v = *reinterpret_cast<const float4*>(a + 4 * (i32)threadIdx.x - 4);\nb[threadIdx.x] = v.w;',
    );
    expect(await report(text, [words(128), 32])).toBe(
      'before_start.cu:3: expected bytes 0..511 of a, got a read of bytes -4..-1 of a by thread 0 of block (0, 0, 0) of before_start. Guard the index, or give it more memory.',
    );
  });

  test('a write past the end, in one block of many', async () => {
    const text = kernel('far', ['f32 a'], 'a[blockIdx.x * 32 + threadIdx.x] = 1.0f;');
    expect(await report(text, [95], [3, 1, 1])).toBe(
      'far.cu:3: expected bytes 0..379 of a, got a write of bytes 380..383 of a by thread 31 of block (2, 0, 0) of far. Guard the index, or give it more memory.',
    );
  });

  test('a write to a binding that is only read', async () => {
    const text = kernel('cheat', ['const f32 a'], 'const_cast<float*>(a)[threadIdx.x] = 1.0f;');
    expect(await report(text, [words(32)])).toBe(
      "cheat.cu:3: expected only reads of a, whose access is 'read', got a write of bytes 0..3 of a by thread 0 of block (0, 0, 0) of cheat. Declare the binding 'read_write'.",
    );
  });

  test('dynamic shared memory beyond what the launch asked for', async () => {
    const text = kernel('dynamic', ['f32 b'], 'reinterpret_cast<float*>(shared_memory)[threadIdx.x] = b[0];', {
      dynamic: 124,
    });
    expect(await report(text, [words(1)])).toBe(
      'dynamic.cu:3: expected bytes 0..123 of shared_memory, got a write of bytes 124..127 of shared_memory by thread 31 of block (0, 0, 0) of dynamic. Guard the index, or give it more memory.',
    );
  });

  test('an index past a shared or a local array', async () => {
    const shared = kernel('tile_index', ['f32 b'], '__shared__ float tile[31];\ntile[threadIdx.x] = b[0];');
    expect(await report(shared, [words(1)])).toBe(
      'tile_index.cu:4: expected an index inside the array, got index 31 by thread 31 of block (0, 0, 0) of tile_index. Guard the index, or make the array longer.',
    );
    const local = kernel('local_index', ['u32 b'], 'u32 own[4] = {0, 1, 2, 3};\nb[0] = own[(i32)b[0]];');
    expect(await report(local, [new Int32Array([-2])])).toBe(
      'local_index.cu:4: expected an index inside the array, got index -2 by thread 0 of block (0, 0, 0) of local_index. Guard the index, or make the array longer.',
    );
  });

  test('a null pointer, memory of another buffer, and a released one', async () => {
    const null_ = kernel('null_pointer', ['f32 b'], 'b[0] = *(float*)(b[0] == 1.0f ? 0x10ull : 0ull);');
    expect(await report(null_, [words(1)])).toBe(
      'null_pointer.cu:3: expected memory of a binding, shared memory or own variables, got a read of 4 bytes at address 0x10 by thread 0 of block (0, 0, 0) of null_pointer. Guard the index, or give it more memory.',
    );
    const keep = kernel('keep', ['u32 b'], 'if (threadIdx.x == 0) *(unsigned long long*)b = (unsigned long long)b;');
    const [kept] = await launch(device, keep, [2]);
    const use = kernel('use', ['u32 b'], 'b[0] = **(u32**)b;');
    expect(await report(use, [new Uint32Array(kept!)])).toBe(
      'use.cu:3: expected memory of a binding, shared memory or own variables, got a read of 4 bytes of a released buffer by thread 0 of block (0, 0, 0) of use. Guard the index, or give it more memory.',
    );
  });

  test('an address that a vector load does not allow', async () => {
    const text = kernel('odd', ['const f32 a', 'f32 b'], 'b[threadIdx.x] = reinterpret_cast<const float2*>(a + 1)->x;');
    expect(await report(text, [words(64), 32])).toBe(
      'odd.cu:3: expected an address that is a multiple of 8, got another by thread 0 of block (0, 0, 0) of odd. Align the offset, or access narrower words.',
    );
  });
});

describe('arithmetic that machines disagree on', () => {
  test('a shift by the width, and a division by zero', async () => {
    const shift = kernel('shift', ['u32 b'], 'b[threadIdx.x] = 1u << (threadIdx.x + b[threadIdx.x]);');
    expect(await report(shift, [new Uint32Array(32).fill(1)])).toBe(
      'shift.cu:3: expected a shift by less than the width of the type, got a shift by 32 by thread 31 of block (0, 0, 0) of shift. Guard the shift: CUDA, C++ and WGSL each give something else.',
    );
    const divide = kernel('divide', ['u32 b'], 'b[threadIdx.x] = 7u / b[threadIdx.x];');
    expect(await report(divide, [new Uint32Array(32)])).toBe(
      'divide.cu:3: expected a divisor other than 0, got 0 by thread 0 of block (0, 0, 0) of divide. Guard the division.',
    );
  });
});

describe('memory never written', () => {
  test('a fresh buffer', async () => {
    const text = kernel(
      'fresh',
      ['f32 a', 'f32 b'],
      'a[threadIdx.x] = 1.0f;\nif (threadIdx.x == 3) b[0] = a[threadIdx.x + 32];',
    );
    expect(await report(text, [64, 1])).toBe(
      'fresh.cu:4: expected a read of bytes written before, got a read of bytes 140..143 of a, never written, by thread 3 of block (0, 0, 0) of fresh. Write them first, from the host or in a kernel.',
    );
  });

  test('a counter that an atomic adds to', async () => {
    const text = kernel('counter', ['u32 a'], 'atomicAdd(&a[0], 1u);');
    expect(await report(text, [1])).toBe(
      'counter.cu:3: expected a read of bytes written before, got a read of bytes 0..3 of a, never written, by thread 0 of block (0, 0, 0) of counter. Write them first, from the host or in a kernel.',
    );
  });

  test('half of a word', async () => {
    const text = kernel(
      'half_word',
      ['u32 a', 'u32 b'],
      'reinterpret_cast<u16*>(a)[2 * threadIdx.x] = 1;\nb[0] = a[0];',
    );
    expect(await report(text, [32, 1])).toBe(
      'half_word.cu:4: expected a read of bytes written before, got a read of bytes 0..3 of a, never written, by thread 0 of block (0, 0, 0) of half_word. Write them first, from the host or in a kernel.',
    );
  });

  test('shared memory is fresh in every block', async () => {
    const text = kernel(
      'stale',
      ['f32 b'],
      '__shared__ float pad[3];\n__shared__ float tile[32];\npad[0] = 0.0f;\nif (blockIdx.x == 0) tile[threadIdx.x] = 1.0f;\nb[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];',
      { threads: 1 },
    );
    expect(await report(text, [64], [2, 1, 1])).toBe(
      'stale.cu:7: expected a read of bytes written before, got a read of bytes 0..3 of shared tile, never written, by thread 0 of block (1, 0, 0) of stale. Write them first in the same block; after a cp.async, wait for its group.',
    );
  });

  test('a local variable that was never initialised holds no zero', async () => {
    const sum = (entry: string, declared: string) =>
      kernel(entry, ['const f32 a', 'f32 b'], `${declared}\nfor (u32 i = 0; i < 2; ++i) sum += a[i];\nb[0] = sum;`, {
        threads: 1,
      });
    const [, zero] = await launch(device, sum('summed', 'float sum = 0.0f;'), [words(2), 1]);
    expect(new Float32Array(zero!)[0]).toBe(2);
    const [, wild] = await launch(device, sum('summed_wild', 'float sum;'), [words(2), 1]);
    expect(Math.abs(new Float32Array(wild!)[0]!)).toBeGreaterThan(1e38);
  });

  test('a copy that was not waited for', async () => {
    const told = (name: string, bytes: string, hint = '') =>
      `${name}.cu:11: expected a read of bytes written before, got a read of bytes ${bytes} of shared_memory, never written, by thread 0 of block (0, 0, 0) of ${name}. Write them first in the same block; after a cp.async, wait for its group.${hint}`;
    expect(await report(copyForgets, [words(224), 224])).toBe(told('copy_forgets', '892..895'));
    expect(await report(copyWaitsOne, [words(224), 224])).toBe(told('copy_waits_one', '892..895'));
  });

  test('what a launch wrote stays written for the next', async () => {
    const [kernelOne] = await device.compile([kernel('first', ['f32 a'], 'a[threadIdx.x] = 2.0f;')]);
    const [kernelTwo] = await device.compile([
      kernel('second', ['const f32 a', 'f32 b'], 'b[0] = a[31];', { threads: 1 }),
    ]);
    const [a, b] = [device.allocate('a', 128), device.allocate('b', 4)];
    await device.run([
      { kernel: kernelOne!, grid: [1, 1, 1], bindings: { a: { buffer: a } } },
      { kernel: kernelTwo!, grid: [1, 1, 1], bindings: { a: { buffer: a }, b: { buffer: b } } },
    ]);
    expect(new Float32Array((await device.read(b)).buffer)[0]).toBe(2);
  });
});

test('a device runs on after a fault, and the launches behind the fault are skipped', async () => {
  const [bad, good] = await device.compile([
    kernel('bad', ['u32 b'], 'b[1] = 1;'),
    kernel('good', ['u32 b'], 'if (threadIdx.x == 0) b[0] = 9;'),
  ]);
  const buffer = device.allocate('b', 4);
  device.write(buffer, new Uint32Array([1]));
  const launchOf = (kernel: typeof bad) => ({
    kernel: kernel!,
    grid: [1, 1, 1] as const,
    bindings: { b: { buffer } },
  });
  const fault = await faultOf(() => device.run([launchOf(bad), launchOf(good)]));
  expect(fault).toContain('kernel-fault: bad.cu:3');
  expect([...(await device.read(buffer))]).toEqual([1, 0, 0, 0]);
  await device.run([launchOf(good)]);
  expect([...(await device.read(buffer))]).toEqual([9, 0, 0, 0]);
});
