import { expect } from 'vitest';
import { CudaDevice } from '../../../runtime/cuda/cudaDevice.js';
import { faultOf } from '../conformance/bench.js';
import { conformanceKernels } from '../conformance/kernels.js';
import { fakes, fakeTest, kernelNamed, once, runScript, withEnvironment } from './harness.js';

const open = (options = {}) => CudaDevice.open({ cache: fakes.folder, ...options });

fakeTest('a buffer beyond what is free names both sizes, and the device goes on', () =>
  withEnvironment({ FAKE_CUDA_BYTES: '1000000' }, async () => {
    await using device = disposable(await open());
    const held = device.allocate('held', 600_000);
    expect(await faultOf(() => device.allocate('keys', 500_000))).toBe(
      "does-not-fit: buffer 'keys': expected at most 400000 bytes, which are free on the device, got 500000. Release buffers first, allocate less, or choose another GPU.",
    );
    held.release();
    expect(device.allocate('keys', 500_000).bytes).toBe(500_000);
  }),
);

fakeTest('memory that is released behind a run is there for the next buffer', () =>
  withEnvironment({ FAKE_CUDA_BYTES: '1000000' }, async () => {
    await using device = disposable(await open());
    const [slow] = await device.compile([kernelNamed('slow')]);
    const buffer = device.allocate('first', 800_000);
    const run = device.run([once(slow, buffer)]);
    buffer.release();
    expect(device.allocate('second', 800_000).bytes).toBe(800_000);
    await run;
  }),
);

fakeTest('a bad access is a fault of the run, and loses the device', async () => {
  const { code, out } = await runScript(`
const device = await open();
const [fault] = await device.compile([kernelNamed('fault')]);
const buffer = device.allocate('output', 4);
await device.run([once(fault, buffer)]).catch(told);
await device.run([once(fault, buffer)]).catch(told);
await device.read(buffer).catch(told);
await device.compile([grow]).catch(told);
try { device.allocate('more', 4); } catch (error) { told(error); }
try { device.write(buffer, new Uint32Array(1)); } catch (error) { told(error); }
buffer.release();
await device.close();`);
  const why = 'CUDA_ERROR_ILLEGAL_ADDRESS (700, an illegal memory access was encountered) from cuStreamQuery';
  const lost = `device-lost: cuda device: expected a live device, got a lost one (${why}). Start a new process: CUDA cannot revive a device within one.`;
  expect(out.split('\n')).toEqual([
    `kernel-fault: run(fault): expected the work to complete, got ${why}. Run the same on the emulator, which names the line of a bad access; here, start a new process.`,
    ...[lost, lost, lost, lost, lost],
  ]);
  expect(code).toBe(0);
});

fakeTest('calls behind one that lost the device say so', async () => {
  const { out } = await runScript(`
const device = await open();
const [fault] = await device.compile([kernelNamed('fault')]);
const buffer = device.allocate('output', 4);
const pending = [device.run([once(fault, buffer)]), device.run([once(fault, buffer)]), device.read(buffer)];
await Promise.all(pending.map((call) => call.catch(told)));`);
  expect(out.split('\n').map((line) => line.slice(0, 40))).toEqual([
    'kernel-fault: run(fault): expected the w',
    'device-lost: cuda device: expected a liv',
    'device-lost: cuda device: expected a liv',
  ]);
});

fakeTest('a launch that the driver refuses leaves the device usable', async () => {
  await using device = disposable(await open());
  const [kernel] = await device.compile([conformanceKernels('cuda').grow]);
  const buffer = device.allocate('output', 4);
  device.write(buffer, Uint32Array.of(5));
  await withEnvironment({ FAKE_CUDA_FAIL: 'cuLaunchKernel:1' }, async () => {
    expect(await faultOf(() => device.run([once(kernel, buffer)]))).toBe(
      'kernel-fault: launch 0 of run(grow): expected the work to complete, got CUDA_ERROR_INVALID_VALUE (1, as told) from cuLaunchKernel. Check the grid and the shared memory of the launch.',
    );
  });
  await device.run([once(kernel, buffer)]);
  expect(new Uint32Array((await device.read(buffer)).buffer)[0]).toBe(16);
});

fakeTest('a write that fails shows at the next call that waits, once', async () => {
  await using device = disposable(await open());
  const buffer = device.allocate('output', 4);
  await withEnvironment({ FAKE_CUDA_FAIL: 'cuMemcpyHtoDAsync:1' }, async () => {
    device.write(buffer, Uint32Array.of(5));
    expect(await faultOf(() => device.read(buffer))).toBe(
      'kernel-fault: write(output): expected the work to complete, got CUDA_ERROR_INVALID_VALUE (1, as told) from cuMemcpyHtoDAsync. Check the grid and the shared memory of the launch.',
    );
  });
  expect(await faultOf(() => device.read(buffer))).toBe('no error');
});

fakeTest('a kernel whose registers leave too little room is refused with both numbers', () =>
  withEnvironment({ FAKE_CUDA_THREADS: '24' }, async () => {
    await using device = disposable(await open());
    expect(await faultOf(() => device.compile([kernelNamed('grow')]))).toBe(
      'does-not-fit: grow.cu: grow: expected at most 24 threads a block, got 32: 255 registers a thread leave room for 24. Generate it with fewer threads, or with tiles that need fewer registers.',
    );
  }),
);

fakeTest('machine code that the driver does not take is told with its log', async () => {
  await using device = disposable(await open());
  await withEnvironment({ FAKE_CUDA_FAIL: 'cuModuleLoadDataEx:218' }, async () => {
    expect(await faultOf(() => device.compile([kernelNamed('grow')]))).toBe(
      'compile-failed: grow.cu: grow: expected machine code that the driver loads, got CUDA_ERROR_INVALID_PTX (218, ptxas fatal: as told) from cuModuleLoadDataEx. Install a driver as new as NVRTC, or NVRTC as old as the driver.',
    );
  });
});

fakeTest('an error of the text names its line and what NVRTC says', async () => {
  await using device = disposable(await open());
  const { broken } = conformanceKernels('cuda');
  expect(await faultOf(() => device.compile([broken.text]))).toBe(
    `compile-failed: broken.cu:${broken.line}: expected text that NVRTC compiles, got "identifier "nothing_of_this_name" is undefined". Fix the emitter or the template that wrote this line, or add what it uses to both files prelude.cuh.`,
  );
});

fakeTest('a time-out is a whole number of milliseconds', async () => {
  for (const timeoutMs of [0, -1, 1.5, Number.NaN, 2 ** 31]) {
    expect(await faultOf(() => open({ timeoutMs }))).toBe(
      `wrong-use: cuda option timeoutMs: expected a whole number from 1 to 2147483647, got ${timeoutMs}. Leave it out for the default.`,
    );
  }
});

fakeTest('options of another type are refused', async () => {
  for (const cache of ['', 5, null]) {
    expect(await faultOf(() => open({ cache }))).toBe(
      `wrong-use: cuda option cache: expected the path of a folder, got ${JSON.stringify(cache)}. Leave it out for the default.`,
    );
  }
  expect(await faultOf(() => CudaDevice.open(null as unknown as object))).toBe(
    'wrong-use: cuda options: expected an object of options, got null. Pass it as the types say.',
  );
});

fakeTest('a sample of more launches than a graph should hold is refused', async () => {
  await using device = disposable(await open());
  const [kernel] = await device.compile([kernelNamed('grow')]);
  const launch = once(kernel, device.allocate('output', 4));
  expect(await faultOf(() => device.time([[launch, launch]], { samples: 1, rounds: 2 ** 17 + 1 }))).toBe(
    'wrong-use: launches of a sample: expected a whole number from 0 to 262144, got 262146. Take more samples, of fewer rounds.',
  );
});

fakeTest('shared memory may be written from', async () => {
  await using device = disposable(await open());
  const buffer = device.allocate('output', 8);
  device.write(buffer, Uint32Array.of(1, 2));
  device.write(buffer, new Uint32Array(new SharedArrayBuffer(8)).fill(7), 0);
  expect([...new Uint32Array((await device.read(buffer)).buffer)]).toEqual([7, 7]);
});

/** A device that ends with its block. */
function disposable(device: CudaDevice): CudaDevice & AsyncDisposable {
  return Object.assign(device, { [Symbol.asyncDispose]: () => device.close() });
}
