import { execFile, spawnSync } from 'node:child_process';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { cli } from '../../cli/support.js';
import { faultOf } from '../conformance/bench.js';
import { launch } from './harness.js';
import { add, copyForgets, kernel } from './kernels.js';

const folders: string[] = [];
async function temporaryFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'kvforge-test-'));
  folders.push(folder);
  return folder;
}
afterAll(async () => {
  for (const folder of folders) await rm(folder, { recursive: true });
});

const lost = (reason: string) =>
  `device-lost: emulator: expected a running emulator process, got ${reason}. Open a new device; the buffers of this one are gone.`;

test('a missing compiler is named, with the way to get it', async () => {
  expect(await faultOf(() => EmulatorDevice.open({ compiler: 'no-such-compiler' }))).toBe(
    'missing-capability: emulator: expected the C++ compiler no-such-compiler, got no such program. Install it: apt-get install g++.',
  );
});

test('text that g++ refuses gives its first error, at its line', async () => {
  const device = await EmulatorDevice.open();
  const hint = 'Fix the emitter or the template that wrote this line, or add what it uses to both files prelude.cuh.';
  const bad = kernel('typo', ['f32 b'], 'const u32 i = threadIdx.x;\nb[i] = nothing;\nb[i] = more;');
  expect(await faultOf(() => device.compile([add, bad]))).toBe(
    `compile-failed: typo.cu:4: expected text that g++ compiles, got "'nothing' was not declared in this scope". ${hint}`,
  );
  const unresolved = kernel('unresolved', ['f32 b'], 'extern float elsewhere(float);\nb[0] = elsewhere(1.0f);');
  expect(await faultOf(() => device.compile([unresolved]))).toMatch(
    /^compile-failed: unresolved\.cu: unresolved: expected a library that loads, got ".*undefined symbol: .*elsewhere.*"\. /,
  );
  await device.close();
});

test('text and descriptor must agree', async () => {
  const device = await EmulatorDevice.open();
  const { descriptor, source } = add;
  const refused = (change: Partial<typeof descriptor>) =>
    faultOf(() => device.compile([{ descriptor: { ...descriptor, ...change }, source }]));
  expect(await refused({ entry: 'sub' })).toBe(
    'wrong-use: add.cu: sub: expected a function sub in the text, got none. Correct the entry.',
  );
  expect(await refused({ bindings: descriptor.bindings.slice(1) })).toBe(
    'wrong-use: add.cu: add: expected 2 parameters, one for each binding, got 3. Make text and descriptor agree.',
  );
  const [kernelAdd] = await device.compile([add]);
  const buffers = ['a', 'b', 'c'].map((name) => [name, { buffer: device.allocate(name, 128) }] as const);
  const run = (grid: readonly [number, number, number]) =>
    faultOf(() => device.run([{ kernel: kernelAdd!, grid, bindings: Object.fromEntries(buffers) }]));
  expect(await run([1, 65536, 1])).toBe(
    'wrong-use: add: expected at most 65535 blocks in y, got 65536. Fold the grid into x.',
  );
  await device.close();
});

test('kernels for every architecture that the command line offers run', async () => {
  const { out } = await cli(
    'generate',
    'shard',
    '--model',
    'x',
    '--target',
    'cuda',
    '--arch',
    'sm_1',
    '--out',
    'x',
    '--json',
  );
  const offered = out.match(/sm_\d{2,}a?/g) ?? [];
  expect(offered).toEqual(expect.arrayContaining(['sm_80', 'sm_86', 'sm_89', 'sm_90', 'sm_100', 'sm_120']));
  const device = await EmulatorDevice.open();
  expect([...device.features].sort()).toEqual([...new Set(offered)].sort());
  for (const arch of offered) {
    const text = { ...add, descriptor: { ...add.descriptor, requires: [arch] } };
    expect(await faultOf(() => device.compile([text]))).toBe('no error');
  }
  await device.close();
});

test('a killed emulator is a lost device', async () => {
  const device = await EmulatorDevice.open();
  const spin = kernel('spin', ['u32 b'], 'volatile u32* const flag = b;\nwhile (*flag == 0) {}');
  const [spinning] = await device.compile([spin]);
  const buffer = device.allocate('b', 4);
  device.write(buffer, new Uint32Array(1));
  const running = faultOf(() => device.run([{ kernel: spinning!, grid: [1, 1, 1], bindings: { b: { buffer } } }]));
  setTimeout(() => process.kill(device.pid!, 'SIGKILL'), 100);
  expect(await running).toBe(lost('its end by SIGKILL'));
  const before = lost('a device lost before, by its end by SIGKILL');
  expect(await faultOf(() => device.allocate('c', 4))).toBe(before);
  expect(await faultOf(() => device.read(buffer))).toBe(before);
  buffer.release();
  await device.close();
});

test('a kernel that does not end is given up', async () => {
  const device = await EmulatorDevice.open({ timeoutMs: 300 });
  const spin = kernel('spin_on', ['u32 b'], 'volatile u32* const flag = b;\nwhile (*flag == 0) {}');
  expect(await faultOf(() => launch(device, spin, [new Uint32Array(1)]))).toBe(
    lost('a time-out of 0.3 s in run(spin_on)'),
  );
  await device.close();
});

test.each(['full', 'none'] as const)('a crash under checks: %s names the line', async (checks) => {
  const device = await EmulatorDevice.open({ checks });
  const deep = kernel(
    'deep',
    ['f32 b'],
    `float own[40000];
for (u32 i = 0; i < 40000; ++i) own[i] = (float)i;
b[0] = own[(u32)b[0]];`,
  );
  const fault = await faultOf(() => launch(device, deep, [new Float32Array(1)]));
  expect(fault).toMatch(
    /^device-lost: deep\.cu:\d+: expected a kernel that runs to its end, got an overflow of its stack \(over 100 KiB of local variables\) at address 0x[0-9a-f]+ in thread 0 of block \(0, 0, 0\) of deep\. /,
  );
  expect(await faultOf(() => device.allocate('c', 4))).toMatch(/^device-lost: .*a device lost before, by/);
  await device.close();
});

test('without checks a wild access still names its line', async () => {
  const device = await EmulatorDevice.open({ checks: 'none' });
  const wild = kernel('wild', ['f32 b'], 'const u32 i = threadIdx.x;\nb[(1 << 20) + i] = 1.0f;');
  expect(await faultOf(() => launch(device, wild, [4]))).toMatch(
    /^device-lost: wild\.cu:4: expected a kernel that runs to its end, got signal 11 at address 0x[0-9a-f]+ in thread 0 of block \(0, 0, 0\) of wild\. Run it with checks: 'full'/,
  );
  await device.close();
});

test('an allocation that fails is told by the next call that waits', async (context) => {
  const device = await EmulatorDevice.open();
  // From here on the emulator gets no memory from the system, as if there were none.
  const limited = spawnSync('prlimit', ['--pid', `${device.pid}`, '--as=1']);
  if (limited.status !== 0) {
    await device.close();
    console.info('skipped: a failing allocation: prlimit is not on PATH');
    context.skip('prlimit is not on PATH');
  }
  const small = device.allocate('small', 4);
  const large = device.allocate('large', 2 ** 28);
  const told =
    'does-not-fit: emulator device: expected memory for every buffer, got the system has no memory left. Allocate less, or release buffers first.';
  expect(await faultOf(() => device.read(small))).toBe(told);
  expect(await faultOf(() => device.read(small))).toBe('no error');
  large.release();
  await device.close();
});

test('compiled kernels are kept and found again, and no half-built folder is left', async () => {
  const cache = await temporaryFolder();
  const first = await EmulatorDevice.open({ cache });
  await Promise.all([first.compile([add]), first.compile([add]), first.compile([copyForgets])]);
  await first.close();
  const names = await readdir(cache);
  // The host program and two kernels; no temporary folder is left.
  expect(names.length).toBe(3);
  expect(names.filter((name) => name.includes('.'))).toEqual([]);
  const start = performance.now();
  const second = await EmulatorDevice.open({ cache });
  await second.compile([add]);
  expect(performance.now() - start).toBeLessThan(2000);
  await second.close();
  expect((await readdir(cache)).sort()).toEqual(names.sort());
});

/** Runs a module with an open `device` in a plain process of its own. */
async function runScript(body: string): Promise<{ code: number | string; out: string }> {
  const script = join(await temporaryFolder(), 'script.mts');
  const here = (path: string) => JSON.stringify(resolve(import.meta.dirname, path));
  await writeFile(
    script,
    `import { EmulatorDevice } from ${here('../../../runtime/emulator/emulator.ts')};
import { kernel } from ${here('kernels.ts')};
import { launch } from ${here('harness.ts')};
const device = await EmulatorDevice.open();
${body}`,
  );
  const tsx = resolve(import.meta.dirname, '../../../node_modules/tsx/dist/cli.mjs');
  return new Promise((done) => {
    execFile(process.execPath, [tsx, script], { timeout: 30_000 }, (error, out, err) => {
      const code = error === null ? 0 : (error.code ?? error.signal ?? 'unknown');
      done({ code, out: code === 0 ? out.trim() : `${out}${err}` });
    });
  });
}

test('an open device does not keep Node alive', async () => {
  const { out } = await runScript(`
const buffer = device.allocate('b', 4);
device.write(buffer, new Uint32Array([7]));
console.log((await device.read(buffer))[0], device.pid);`);
  const [value, pid] = out.split(' ').map(Number);
  expect(value).toBe(7);
  await expect.poll(() => alive(pid!), { timeout: 5000 }).toBe(false);
});

const start = `const [one] = await device.compile([kernel('one', ['u32 b'], 'b[threadIdx.x] = 1;', { threads: 1 })]);
const buffer = device.allocate('b', 256);
const once = [{ kernel: one, grid: [1, 1, 1], bindings: { b: { buffer } } }];
`;
const whileClosing: readonly (readonly [string, string])[] = [
  ['nothing', ''],
  ['an allocation', "device.allocate('b', 4);"],
  ['a release', "const buffer = device.allocate('b', 4);\nawait device.read(buffer);\nbuffer.release();"],
  ['a run that has ended', `${start}await device.run(once);`],
  ['a run that nobody waits for', `${start}device.run(once).catch(() => {});`],
  ['another close', "device.allocate('b', 4);\ndevice.close();"],
];

test.each(whileClosing)('Node goes on after close: %s', async (_, body) => {
  expect(await runScript(`${body}\nawait device.close();\nconsole.log('after');`)).toEqual({ code: 0, out: 'after' });
});

test('Node goes on after close of a device that was lost', async () => {
  const body = `const spin = kernel('spin_on', ['u32 b'], 'volatile u32* const flag = b;\\nwhile (*flag == 0) {}');
const short = await EmulatorDevice.open({ timeoutMs: 200 });
const fault = await launch(short, spin, [new Uint32Array(1)]).catch((error) => error.code);
await short.close();
await device.close();
console.log(fault);`;
  expect(await runScript(body)).toEqual({ code: 0, out: 'device-lost' });
});

test('Node waits for whatever a device has promised', async () => {
  const body = `${start}await device.run(once);
await Promise.all([device.run(once), device.read(buffer, 0, 4)]);
const again = kernel('again', ['u32 b'], 'b[threadIdx.x] = 1;', { threads: 1 });
await Promise.all([device.compile([again]), device.read(buffer, 0, 4)]);
const broken = kernel('broken', ['u32 b'], 'b[1u << 20] = 1;');
console.log(await launch(device, broken, [4]).catch((error) => error.code));`;
  expect(await runScript(body)).toEqual({ code: 0, out: 'kernel-fault' });
});

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
