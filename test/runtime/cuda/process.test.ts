import { expect } from 'vitest';
import { fakes, fakeTest, runScript } from './harness.js';

fakeTest('a launch that does not end is given up, and the process ends with its own code', async () => {
  const { code, out, ms } = await runScript(`
const device = await open({ timeoutMs: 300 });
const [hang] = await device.compile([kernelNamed('hang')]);
const buffer = device.allocate('output', 4);
const started = performance.now();
await device.run([once(hang, buffer)]).catch(told);
console.log(performance.now() - started < 3000);
await device.run([once(hang, buffer)]).catch(told);
await device.close();
process.exitCode = 5;`);
  expect(out.split('\n')).toEqual([
    'device-lost: run(hang): expected an end within 300 ms, got none. Look for an endless loop or a lost barrier; start a new process, with a larger timeoutMs if the work is long.',
    'true',
    'device-lost: cuda device: expected a live device, got a lost one (a launch did not end in time). Start a new process: CUDA cannot revive a device within one.',
  ]);
  expect(code).toBe(5);
  expect(ms).toBeLessThan(20_000);
});

fakeTest('recordings and timings are given up in time too', async () => {
  for (const call of [
    'await (await device.record([launch])).run()',
    'await device.time([[launch]], { samples: 2, rounds: 2 })',
  ]) {
    const { code, out } = await runScript(`
const device = await open({ timeoutMs: 300 });
const [hang] = await device.compile([kernelNamed('hang')]);
const launch = once(hang, device.allocate('output', 4));
try { ${call}; } catch (error) { told(error); }`);
    expect(out).toMatch(/^device-lost: .*: expected an end within 300 ms, got none\./);
    expect(code).toBe(0);
  }
});

fakeTest('process.exit() in the middle of a launch that does not end ends the process', async () => {
  const { code, out } = await runScript(`
const device = await open();
const [hang] = await device.compile([kernelNamed('hang')]);
void device.run([once(hang, device.allocate('output', 4))]);
setTimeout(() => { console.log('leaving'); process.exit(9); }, 200);`);
  expect([code, out]).toEqual([9, 'leaving']);
});

fakeTest('process.exit() while a text is compiled ends the process', async () => {
  const { code, out } = await runScript(
    `
const device = await open({ cache: ${JSON.stringify(fakes.folder)} + '/slow' });
void device.compile([grow]);
setTimeout(() => { console.log('leaving'); process.exit(9); }, 500);`,
    { FAKE_NVRTC_SLOW: '1' },
  );
  expect([code, out]).toEqual([9, 'leaving']);
});

fakeTest('an open device does not keep Node alive, and a pending run does', async () => {
  const { code, out } = await runScript(`
const device = await open();
const [slow] = await device.compile([kernelNamed('slow')]);
device.run([once(slow, device.allocate('output', 4))]).then(() => console.log('ran'));`);
  expect([code, out]).toEqual([0, 'ran']);
});

fakeTest('the event loop turns while the device works', async () => {
  const { out } = await runScript(`
const device = await open();
const [slow] = await device.compile([kernelNamed('slow')]);
const launch = once(slow, device.allocate('output', 4));
let turns = 0;
const timer = setInterval(() => turns++, 1);
// 200 ms of work.
for (let i = 0; i < 4; i++) await device.run([launch]);
clearInterval(timer);
console.log(turns > 20);`);
  expect(out).toBe('true');
});

fakeTest('close() frees what was not released, and gives the context back', async () => {
  const { out } = await runScript(`
const device = await open();
device.allocate('a', 4096);
const other = await open();
other.allocate('b', 512);
await device.close();
await other.close();
console.log(calls());`);
  expect(out.split('\n')).toEqual([
    'cuInit',
    'free 4096',
    'release of the context',
    'free 512',
    'release of the context',
  ]);
});

fakeTest('a buffer is freed when nothing refers to it any more, and at the end of a using block', async () => {
  const { out } = await runScript(`
const device = await open();
{
  using scoped = device.allocate('scoped', 64) as any;
  scoped.release();
}
(() => { device.allocate('dropped', 128); })();
for (let i = 0; i < 50; i++) { (globalThis as any).gc(); await new Promise((done) => setTimeout(done, 2)); }
const kept = device.allocate('kept', 256);
console.log(calls(), kept.bytes);`);
  expect(out.split('\n')).toEqual(['cuInit', 'free 64', 'free 128', ' 256']);
});

fakeTest('a recording keeps the buffers that it binds', async () => {
  const { out } = await runScript(`
const device = await open();
const [kernel] = await device.compile([grow]);
const recording = await (() => device.record([once(kernel, device.allocate('output', 128))]))();
for (let i = 0; i < 50; i++) { (globalThis as any).gc(); await new Promise((done) => setTimeout(done, 2)); }
await recording.run();
recording.release();
await device.close();
console.log(calls());`);
  expect(out.split('\n').filter((line) => /free|graph/.test(line))).toEqual([
    'launch of a graph',
    'end of a graph',
    'free 128',
  ]);
});

fakeTest('samples are the time between the first and the last launch, over rounds and lists', async () => {
  const { out } = await runScript(`
process.env.FAKE_CUDA_CLOCK = '3';
const device = await open();
const [kernel] = await device.compile([grow]);
const launch = once(kernel, device.allocate('output', 4));
// 3 ms a launch: a list of one and a list of three take 6 ms on average.
console.log(JSON.stringify(await device.time([[launch], [launch, launch, launch]], { samples: 3, rounds: 5 })));`);
  expect(JSON.parse(out)).toEqual([6000, 6000, 6000]);
});
