import { mkdtempSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { packagePath } from '../../../codegen/packageRoot.js';
import { findAddon } from '../../../runtime/cuda/addon.js';
import { faultOf } from '../conformance/bench.js';
import { fakes, fakeTest, runScript } from './harness.js';

/** What opening a device says in a process of its own. */
async function opening(env: Readonly<Record<string, string>>, rest = ''): Promise<string> {
  const { out } = await runScript(
    `const device = await open({ cache: '${fakes.folder}/none' }).catch(told);
if (device) { ${rest} }`,
    env,
  );
  return out;
}

const compile = 'await device.compile([grow]).catch(told);';

fakeTest('without an addon the fix is to build it', async () => {
  const empty = mkdtempSync(join(fakes.folder, 'empty-'));
  expect(await faultOf(() => findAddon([empty]))).toBe(
    `missing-capability: cuda addon: expected one built for ${process.platform}-${process.arch}, got none in the package. Build it with a C++17 compiler and Python: npx node-gyp rebuild --directory "${packagePath('runtime', 'cuda', 'addon')}".`,
  );
});

fakeTest('without a driver the fix is to install it', async () => {
  // No machine that tests run on without a GPU has one; with one, nothing is missing.
  const text = await opening({ KVFORGE_LIBCUDA: '' });
  if (text === '') return;
  expect(text).toBe(
    'missing-capability: cuda driver: expected the NVIDIA driver (libcuda.so.1, libcuda.so), got none found. Install the NVIDIA driver, or use --device emulator.',
  );
});

fakeTest('a driver that the environment names is the only one tried', async () => {
  expect(await opening({ KVFORGE_LIBCUDA: '/no/libcuda.so' })).toBe(
    "missing-capability: cuda driver: expected KVFORGE_LIBCUDA to name a driver, got /no/libcuda.so: cannot open shared object file: No such file or directory. Correct KVFORGE_LIBCUDA, or unset it to use the system's driver.",
  );
  const text = join(fakes.folder, 'text.so');
  writeFileSync(text, 'not a library');
  expect(await opening({ KVFORGE_LIBCUDA: text })).toMatch(
    /got .*text\.so: (file too short|invalid ELF header)\. Correct/,
  );
});

fakeTest('a library without the functions of a driver is too old', async () => {
  expect(await opening({ KVFORGE_LIBCUDA: fakes.libnvrtc })).toBe(
    `missing-capability: cuda driver: expected a driver that works, got ${fakes.libnvrtc} has no function cuInit. Install a newer driver: CUDA 11.4 or later.`,
  );
});

fakeTest('a driver that does not start says why', async () => {
  expect(await opening({ FAKE_CUDA_FAIL: 'cuInit:100' })).toBe(
    `missing-capability: cuda driver: expected a driver that works, got CUDA_ERROR_NO_DEVICE (100, no CUDA-capable device is detected (${fakes.libcuda})) from cuInit. Check nvidia-smi and CUDA_VISIBLE_DEVICES.`,
  );
});

fakeTest('a context that cannot be made is told', async () => {
  expect(await opening({ FAKE_CUDA_FAIL: 'cuDevicePrimaryCtxRetain:2' })).toBe(
    'does-not-fit: opening cuda device 0: expected memory for it on the device, got CUDA_ERROR_OUT_OF_MEMORY (2, as told) from cuDevicePrimaryCtxRetain. Release buffers first.',
  );
});

fakeTest('an NVRTC that the environment names is the only one tried', async () => {
  expect(await opening({ KVFORGE_LIBNVRTC: '/no/libnvrtc.so' }, compile)).toBe(
    "missing-capability: nvrtc: expected KVFORGE_LIBNVRTC to name NVRTC's library, got /no/libnvrtc.so: cannot open shared object file: No such file or directory. Correct KVFORGE_LIBNVRTC, or unset it to search the usual folders.",
  );
  expect(await opening({ KVFORGE_LIBNVRTC: fakes.libcuda }, compile)).toBe(
    `missing-capability: nvrtc: expected KVFORGE_LIBNVRTC to name NVRTC's library, got ${fakes.libcuda} has no function nvrtcVersion. Correct KVFORGE_LIBNVRTC, or unset it to search the usual folders.`,
  );
});

fakeTest('importing the runtime loads neither addon nor driver', async () => {
  const { out } = await runScript(
    `await import('${join(import.meta.dirname, '../../../runtime/index.ts')}');
const maps = (await import('node:fs')).readFileSync('/proc/self/maps', 'utf8');
console.log(maps.includes('kvforge.node'), maps.includes('libcuda'));`,
  );
  expect(out).toBe('false false');
});
