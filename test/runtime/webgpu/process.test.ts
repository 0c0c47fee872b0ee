import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { unpackSwiftShader } from '../../../runtime/webgpu/swiftshader.js';

/** How a whole process fares with the device: what Dawn does at exit, to the collector, and with what is missing. */

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'kvforge-test-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

interface Outcome {
  readonly code: number | string;
  readonly out: string;
}

/** Runs a module in a plain process: of the environment of this one it gets PATH and HOME, no Vulkan variables. */
function runModule(body: string, env: Record<string, string> = {}, flags: readonly string[] = []): Promise<Outcome> {
  const { PATH = '', HOME = '' } = process.env;
  const imports = "import { WebGpuDevice } from './runtime/webgpu/webgpu.ts';\n";
  const args = [...flags, '--import', 'tsx', '--input-type=module', '-e', imports + body];
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd: root, env: { PATH, HOME, ...env } }, (error, out, err) => {
      const code = error === null ? 0 : (error.code ?? error.signal ?? 'unknown');
      resolve({ code, out: code === 0 ? out.trim() : `${out}${err}` });
    });
  });
}

const WORK = `
const device = await WebGpuDevice.open({ adapter: 'software' });
const buffer = device.allocate('memory', 4096);
device.write(buffer, new Uint32Array(1024).fill(7));
console.log((await device.read(buffer))[0]);
`;

test('a process exits by itself with code 0 after close', async () => {
  expect(await runModule(`${WORK} await device.close();`)).toEqual({ code: 0, out: '7' });
});

test('a process exits by itself with code 0 without close, also with a read under way', async () => {
  expect(await runModule(WORK)).toEqual({ code: 0, out: '7' });
  expect(await runModule(`${WORK} device.read(buffer);`)).toEqual({ code: 0, out: '7' });
  expect(await runModule(`${WORK} process.exit(0);`)).toEqual({ code: 0, out: '7' });
});

test('collecting devices and their buffers does not crash the process', async () => {
  const body = `
async function once() {${WORK}}
for (let i = 0; i < 5; i++) {
  await once();
  gc();
  await new Promise((resolve) => setTimeout(resolve, 5));
  gc();
}`;
  expect(await runModule(body, {}, ['--expose-gc'])).toEqual({ code: 0, out: '7\n7\n7\n7\n7' });
});

const TELL = `await WebGpuDevice.open({ adapter: 'software' }).then(
  (device) => console.log(device.description),
  (error) => console.log(error.code + ': ' + error.message),
);`;

test('a driver list without a driver is told', async () => {
  const { code, out } = await runModule(TELL, { VK_DRIVER_FILES: '/nowhere/icd.json' });
  expect({ code, out }).toEqual({
    code: 0,
    out: 'missing-capability: webgpu device: expected a software adapter, got none among the drivers of VK_DRIVER_FILES (/nowhere/icd.json). Correct VK_DRIVER_FILES, or unset it.',
  });
});

test('a worker thread, where SwiftShader cannot be named, is told to use the main thread', async () => {
  const { code, out } = await runModule(`
import { Worker } from 'node:worker_threads';
const source = ${JSON.stringify(`import { register } from 'tsx/esm/api'; register(); import('${join(root, 'runtime/webgpu/webgpu.ts')}').then(({ WebGpuDevice }) => ${TELL.replace(/^await |;$/g, '')})`)};
new Worker(source, { eval: true });`);
  expect({ code, out }).toEqual({
    code: 0,
    out: 'missing-capability: webgpu device: expected a software adapter, got none: a worker thread cannot name SwiftShader to the Vulkan loader. Open the device on the main thread.',
  });
});

test('a missing webgpu package is told with the command that installs it', async () => {
  const hook = `export function resolve(name, context, next) {
    if (name !== 'webgpu') return next(name, context);
    throw Object.assign(new Error("Cannot find package 'webgpu'"), { code: 'ERR_MODULE_NOT_FOUND' });
  }`;
  const url = `data:text/javascript,${encodeURIComponent(hook)}`;
  const { code, out } = await runModule(
    `import { register } from 'node:module'; register(${JSON.stringify(url)}); ${TELL}`,
  );
  expect({ code, out }).toEqual({
    code: 0,
    out: "missing-capability: webgpu device: expected the npm package webgpu, got Cannot find package 'webgpu'. Run npm install --save-dev webgpu @sparticuz/chromium.",
  });
});

test('SwiftShader is unpacked once, also by callers that race, into the first cache that can hold it', async () => {
  const notAFolder = join(folder, 'file');
  await writeFile(notAFolder, '');
  const cache = join(folder, 'cache');
  const results = await Promise.all([1, 2, 3].map(() => unpackSwiftShader([notAFolder, cache])));
  const [first] = results;
  expect(results).toEqual([first, first, first]);
  expect(first).toEqual({ folder: expect.stringMatching(/cache\/swiftshader\/\d+\.\d+\.\d+$/) });
  const unpacked = (first as { folder: string }).folder;
  expect((await readdir(unpacked)).sort()).toEqual([
    'libvk_swiftshader.so',
    'libvulkan.so.1',
    'vk_swiftshader_icd.json',
  ]);
  // No temporary folder stays behind.
  expect(await readdir(dirname(unpacked))).toHaveLength(1);
});

test('a cache that others can write to is not trusted', async () => {
  const open = join(folder, 'open');
  await mkdir(open);
  await chmod(open, 0o777);
  expect(await unpackSwiftShader([open])).toEqual({
    why: `SwiftShader could not be unpacked (${open} is writable by others)`,
    fix: 'Set XDG_CACHE_HOME to a folder that only you can write to.',
  });
});
