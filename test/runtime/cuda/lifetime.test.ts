import { join } from 'node:path';
import { expect } from 'vitest';
import { fakes, fakeTest, runScript } from './harness.js';

const collect =
  'for (let i = 0; i < 50; i++) { (globalThis as any).gc(); await new Promise((done) => setTimeout(done, 2)); }';

fakeTest('a device that is dropped unclosed gives back its memory and the context', async () => {
  const { out } = await runScript(`
await (async () => {
  const device = await open();
  device.allocate('a', 4096);
  device.write(device.allocate('b', 512), new Uint32Array(4));
})();
${collect}
console.log(calls());`);
  expect(out.split('\n').sort()).toEqual(['cuInit', 'free 4096', 'free 512', 'release of the context']);
});

fakeTest('a buffer is released without waiting for what another device does', async () => {
  const { out } = await runScript(`
const [device, other] = [await open(), await open()];
const [slow] = await other.compile([kernelNamed('slow')]);
const buffer = device.allocate('idle', 64);
const run = other.run([once(slow, other.allocate('output', 4))]);
await new Promise((done) => setTimeout(done, 10));
const started = performance.now();
buffer.release();
console.log(performance.now() - started < 20);
await run;`);
  expect(out).toBe('true');
});

fakeTest('more launches than the driver takes at once are given up in time too', async () => {
  const { code, out } = await runScript(`
const device = await open({ timeoutMs: 300 });
const [hang] = await device.compile([kernelNamed('hang')]);
const launch = once(hang, device.allocate('output', 4));
await device.run(Array(2000).fill(launch)).catch(told);`);
  expect(out).toMatch(/^device-lost: run\(hang\): expected an end within 300 ms, got none\./);
  expect(code).toBe(0);
});

fakeTest('a list of many launches runs all of them, in order', async () => {
  const { out } = await runScript(`
const device = await open();
const [kernel] = await device.compile([grow]);
const buffer = device.allocate('output', 4);
device.write(buffer, Uint32Array.of(1));
await device.run(Array(1500).fill(once(kernel, buffer)));
// x -> 3x + 1, modulo 2^32.
let expected = 1;
for (let i = 0; i < 1500; i++) expected = (Math.imul(expected, 3) + 1) >>> 0;
console.log(new Uint32Array((await device.read(buffer)).buffer)[0] === expected);`);
  expect(out).toBe('true');
});

fakeTest('process.exit() while a kernel is loaded ends the process', async () => {
  const { code, out } = await runScript(
    `
const device = await open();
void device.compile([grow]);
setTimeout(() => { console.log('leaving'); process.exit(9); }, 500);`,
    { FAKE_CUDA_LOADING: '4000' },
  );
  expect([code, out]).toEqual([9, 'leaving']);
});

fakeTest('a device that does not open gives the context back', async () => {
  const { out } = await runScript(
    `
await open().catch(told);
console.log(calls());`,
    { FAKE_CUDA_FAIL: 'cuStreamCreate:1' },
  );
  expect(out.split('\n')).toEqual([
    'kernel-fault: opening cuda device 0: expected the work to complete, got CUDA_ERROR_INVALID_VALUE (1, as told) from cuStreamCreate. Check the grid and the shared memory of the launch.',
    'cuInit',
    'release of the context',
  ]);
});

fakeTest('a graph that cannot be used is destroyed', async () => {
  const { out } = await runScript(`
const device = await open();
const [kernel] = await device.compile([grow]);
const launch = once(kernel, device.allocate('output', 4));
process.env.FAKE_CUDA_FAIL = 'cuGraphUpload:1';
for (const work of [device.record([launch]), device.time([[launch]], { samples: 1, rounds: 1 })]) await work.catch(() => 0);
console.log(calls().split('\\n').filter((line) => line === 'end of a graph').length);`);
  expect(out).toBe('2');
});

fakeTest('a worker of Node may be ended in the middle of its work, and the process goes on', async () => {
  const { code, out } = await runScript(
    `
const { Worker } = await import('node:worker_threads');
const { findAddon } = await import(${JSON.stringify(join(import.meta.dirname, '../../../runtime/cuda/addon.ts'))});
// The worker has no loader for TypeScript: it calls the addon itself.
const text = \`
const addon = require(\${JSON.stringify(await findAddon())});
const { parentPort } = require('node:worker_threads');
const { KVFORGE_LIBCUDA, KVFORGE_LIBNVRTC } = process.env;
Promise.all([addon.openDriver([KVFORGE_LIBCUDA]), addon.openNvrtc([KVFORGE_LIBNVRTC])]).then(async () => {
  for (let i = 0; i < 8; i++) {
    void addon.compile({ name: 'a.cu', source: 'a', headerName: 'p', header: '', options: [], ptx: false });
  }
  const device = new addon.Device(0);
  await device.open();
  device.allocate(4096);
  for (let i = 0; i < 1000; i++) void device.fill(device.allocate(4), 4);
  parentPort.postMessage('working');
});\`;
const worker = new Worker(text, { eval: true, execArgv: [] });
worker.on('error', (error) => console.log('error', error.message));
await new Promise((done) => worker.once('message', done));
await worker.terminate();
const device = await open();
// The texts are compiled meanwhile, for nobody.
await new Promise((done) => setTimeout(done, 4000));
console.log((await device.read(device.allocate('output', 4))).length);
await device.close();
console.log(calls().split('\\n').filter((line) => /free 4096|release/.test(line)).join());`,
    { FAKE_NVRTC_SLOW: '1' },
  );
  expect([code, out]).toEqual([0, '4\nfree 4096,release of the context,release of the context']);
});

fakeTest('NVRTC that was missing is found by the next compile', async () => {
  const { out } = await runScript(`
const device = await open({ cache: ${JSON.stringify(join(fakes.folder, 'again'))} });
const there = process.env.KVFORGE_LIBNVRTC!;
process.env.KVFORGE_LIBNVRTC = '/no/libnvrtc.so';
await device.compile([grow]).catch((error) => console.log(error.code));
process.env.KVFORGE_LIBNVRTC = there;
console.log((await device.compile([grow])).length);`);
  expect(out.split('\n')).toEqual(['missing-capability', '1']);
});
