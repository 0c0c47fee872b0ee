import { copyFileSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { expect } from 'vitest';
import { CudaDevice } from '../../../runtime/cuda/cudaDevice.js';
import type { KernelText } from '../../../runtime/device.js';
import { conformanceKernels } from '../conformance/kernels.js';
import { fakes, fakeTest, kernelNamed, logged, runScript, withEnvironment } from './harness.js';

const cacheFolder = () => mkdtempSync(join(fakes.folder, 'cache-'));

/** What NVRTC is asked for when a device compiles these kernels. */
function asked(cache: string, kernels: readonly KernelText[]): Promise<readonly string[]> {
  return logged('FAKE_NVRTC_LOG', async () => {
    const device = await CudaDevice.open({ cache });
    await device.compile(kernels);
    await device.close();
  });
}

fakeTest(
  'a text is compiled once, for the own architecture of the device, with the prelude as its header',
  async () => {
    const cache = cacheFolder();
    const lines = await asked(cache, conformanceKernels('cuda').pair);
    expect(lines.filter((line) => line !== 'open')).toEqual([
      'header prelude.cuh',
      'compile pair.cu',
      'options --std=c++17 -default-device --gpu-architecture=sm_90a',
    ]);
  },
);

fakeTest('what lies in the cache is not compiled again, and NVRTC is not even opened', async () => {
  const cache = cacheFolder();
  expect(await asked(cache, [kernelNamed('grow')])).toContain('compile grow.cu');
  // In another process, which has not opened NVRTC for other reasons.
  const body = `
const device = await open({ cache: ${JSON.stringify(cache)} });
const [kernel] = await device.compile([grow]);
const buffer = device.allocate('output', 4);
device.write(buffer, Uint32Array.of(1));
await device.run([once(kernel, buffer)]);
console.log(new Uint32Array((await device.read(buffer)).buffer)[0]);
console.log((await import('node:fs')).readFileSync('/proc/self/maps', 'utf8').includes('libnvrtc'));`;
  expect((await runScript(body)).out).toBe('4\nfalse');
  expect((await runScript(body.replace(JSON.stringify(cache), JSON.stringify(cacheFolder())))).out).toBe('4\ntrue');
});

fakeTest('another text, another architecture and another NVRTC are compiled', async () => {
  const cache = cacheFolder();
  const grow = kernelNamed('grow');
  await asked(cache, [grow]);
  expect(await asked(cache, [{ ...grow, source: `${grow.source}// changed\n` }])).toContain('compile grow.cu');
  await withEnvironment({ FAKE_CUDA_CC: '80' }, async () => {
    expect(await asked(cache, [grow])).toContain('options --std=c++17 -default-device --gpu-architecture=sm_80');
  });
  const other = join(fakes.folder, 'libnvrtc-other.so');
  copyFileSync(fakes.libnvrtc, other);
  await withEnvironment({ KVFORGE_LIBNVRTC: other }, async () => {
    expect(await asked(cache, [grow])).toContain('compile grow.cu');
  });
  expect(await asked(cache, [grow])).toEqual([]);
});

fakeTest('a damaged file of the cache is noticed and replaced', async () => {
  const cache = cacheFolder();
  const grow = kernelNamed('grow');
  await asked(cache, [grow]);
  const [name] = readdirSync(cache);
  const file = join(cache, name!);
  const whole = readFileSync(file);
  const flipped = Buffer.from(whole);
  flipped[whole.length - 10]! ^= 1;
  for (const damaged of [whole.subarray(0, whole.length / 2), flipped, Buffer.alloc(0)]) {
    writeFileSync(file, damaged);
    expect(await asked(cache, [grow])).toContain('compile grow.cu');
    expect(readFileSync(file)).toEqual(whole);
  }
  // Nothing but the one file: what was written on the way there is gone.
  expect(readdirSync(cache)).toEqual([name]);
});

fakeTest('a cache that cannot be written costs only time', async () => {
  const file = join(cacheFolder(), 'file');
  writeFileSync(file, '');
  const cache = join(file, 'folder');
  expect(await asked(cache, [kernelNamed('grow')])).toContain('compile grow.cu');
  expect(await asked(cache, [kernelNamed('grow')])).toContain('compile grow.cu');
});

fakeTest('a GPU newer than NVRTC gets PTX for the nearest architecture below', () =>
  withEnvironment({ FAKE_CUDA_CC: '121', FAKE_NVRTC_ARCHS: '75 100' }, async () => {
    const { out } = await runScript(`
process.env.FAKE_NVRTC_LOG = ${JSON.stringify(join(fakes.folder, 'ptx-log'))};
const device = await open({ cache: ${JSON.stringify(cacheFolder())} });
const [kernel] = await device.compile([grow]);
console.log((await import('node:fs')).readFileSync(process.env.FAKE_NVRTC_LOG, 'utf8'));`);
    expect(out.split('\n').at(-1)).toBe('options --std=c++17 -default-device --gpu-architecture=compute_100');
  }),
);

fakeTest('an NVRTC from before the variants compiles for the architecture itself', () =>
  withEnvironment({ FAKE_NVRTC_MAJOR: '11' }, async () => {
    expect(await asked(cacheFolder(), [kernelNamed('grow')])).toContain(
      'options --std=c++17 -default-device --gpu-architecture=sm_90',
    );
  }),
);

fakeTest('a bare name of NVRTC is none of the working directory', async () => {
  const folder = cacheFolder();
  const cache = cacheFolder();
  const before = process.cwd();
  const identity = async () => {
    // The loader finds it by its folder, as it was set when the process started.
    const { out } = await runScript(
      `
process.chdir(${JSON.stringify(folder)});
const device = await open({ cache: ${JSON.stringify(cache)} });
await device.compile([grow]);
console.log((await import('node:fs')).readFileSync('/proc/self/maps', 'utf8').includes('libnvrtc'));`,
      { KVFORGE_LIBNVRTC: basename(fakes.libnvrtc), LD_LIBRARY_PATH: fakes.folder },
    );
    return out;
  };
  writeFileSync(join(folder, basename(fakes.libnvrtc)), 'not a library');
  // It is opened to be recognised, not taken for the file that lies here.
  expect(await identity()).toBe('true');
  expect(await identity()).toBe('true');
  expect(process.cwd()).toBe(before);
});

fakeTest('an NVRTC that is too new for the GPU is told', () =>
  withEnvironment({ FAKE_CUDA_CC: '80', FAKE_NVRTC_ARCHS: '90 120' }, async () => {
    const { out } = await runScript(`
const device = await open({ cache: ${JSON.stringify(cacheFolder())} });
await device.compile([grow]).catch(told);`);
    expect(out).toBe(
      `missing-capability: nvrtc: expected a version that compiles for sm_80, got 13.0, which begins with sm_90 (${fakes.libnvrtc}). Install an older CUDA toolkit, or use another GPU.`,
    );
  }),
);

fakeTest('the first error in the order of the list is told, whichever compiles first', async () => {
  const { broken } = conformanceKernels('cuda');
  const named = (file: string): KernelText => ({
    ...broken.text,
    descriptor: { ...broken.text.descriptor, file },
  });
  const device = await CudaDevice.open({ cache: cacheFolder() });
  const texts = ['a.cu', 'b.cu', 'c.cu'].map(named);
  await expect(device.compile([kernelNamed('grow'), ...texts])).rejects.toThrow(/^a\.cu:/);
  await device.close();
});

fakeTest('dynamic shared memory is announced to the driver', async () => {
  const dynamic = conformanceKernels('cuda').dynamic!(20_000);
  const lines = await logged('FAKE_CUDA_LOG', async () => {
    const device = await CudaDevice.open({ cache: cacheFolder() });
    await device.compile([dynamic]);
    await device.close();
  });
  expect(lines).toContain('dynamic may use 80000 bytes');
});
