import assert from 'node:assert/strict';
import type { Launch } from '../../../runtime/device.js';
import { type ConformanceCase, faultOf, words } from './bench.js';

/** What `grow` makes of zero in so many launches. */
function grown(launches: number): number {
  let value = 0;
  for (let i = 0; i < launches; i++) value = (Math.imul(value, 3) + 1) >>> 0;
  return value;
}

/** What launches have to do, and in which order. */
export const launchCases: readonly ConformanceCase[] = [
  {
    name: 'each launch of a run sees the writes of those before it',
    async run(bench) {
      const [a, b] = [bench.zeros('a', 100), bench.zeros('b', 100)];
      const [forth, back] = [bench.step(a, b, 100), bench.step(b, a, 100)];
      await bench.device.run(Array.from({ length: 12 }, (_, i) => (i % 2 === 0 ? forth : back)));
      // x -> 3x + 1, twelve times from 0.
      assert.deepEqual(await bench.read(a), Array(100).fill((3 ** 12 - 1) / 2));
      assert.deepEqual(await bench.read(b), Array(100).fill((3 ** 11 - 1) / 2));
      return undefined;
    },
  },
  {
    name: 'a run of more than a thousand launches keeps its order',
    async run(bench) {
      const buffer = bench.zeros('output', 1);
      const kernel = await bench.compileOne(bench.texts.grow);
      const launch: Launch = { kernel, grid: [1, 1, 1], bindings: { output: { buffer } } };
      await bench.device.run(Array<Launch>(1300).fill(launch));
      assert.deepEqual(await bench.read(buffer), [grown(1300)]);
      return undefined;
    },
  },
  {
    name: 'calls that are not awaited take effect in the order they were made',
    async run(bench) {
      const { device } = bench;
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const [forth, back] = [bench.step(a, b, 64), bench.step(b, a, 64)];
      const pending: Promise<unknown>[] = [];
      for (let i = 0; i < 5; i++) pending.push(device.run([forth]), device.run([back]));
      const before = device.read(a);
      device.write(a, new Uint32Array(64).fill(5));
      const after = device.read(a);
      await Promise.all(pending);
      assert.deepEqual(words(await before), Array(64).fill((3 ** 10 - 1) / 2));
      assert.deepEqual(words(await after), Array(64).fill(5));
      return undefined;
    },
  },
  {
    name: 'a read waits for the run before it',
    async run(bench) {
      const buffer = bench.zeros('output', 1);
      const kernel = await bench.compileOne(bench.texts.grow);
      const launch: Launch = { kernel, grid: [1, 1, 1], bindings: { output: { buffer } } };
      const run = bench.device.run(Array<Launch>(300).fill(launch));
      assert.deepEqual(await bench.read(buffer), [grown(300)]);
      await run;
      return undefined;
    },
  },
  {
    name: 'a buffer that is released behind a run lasts until the run is done',
    async run(bench) {
      const [a, b] = [bench.filled('a', Array(64).fill(2)), bench.zeros('b', 64)];
      const run = bench.device.run([bench.step(a, b, 64)]);
      const result = bench.device.read(b);
      a.release();
      b.release();
      await run;
      assert.deepEqual(words(await result), Array(64).fill(7));
      return undefined;
    },
  },
  {
    name: 'ranges bind a part of a buffer',
    async run(bench) {
      const memory = bench.filled('memory', [...Array(192).keys()]);
      const output = bench.zeros('output', 192);
      const part = { offset: 256, bytes: 256 };
      await bench.launch({
        params: { buffer: bench.filled('params', [64]) },
        input: { buffer: memory, ...part },
        output: { buffer: output, ...part },
      });
      const expected = Array.from({ length: 192 }, (_, i) => (i >= 64 && i < 128 ? i * 3 + 1 : 0));
      assert.deepEqual(await bench.read(output), expected);
      return undefined;
    },
  },
  {
    name: 'two writers may share a buffer where they do not overlap',
    async run(bench) {
      const kernel = await bench.compileOne(bench.texts.twoWriters);
      const buffer = bench.zeros('both', 65);
      const run = (first: number) => {
        const bindings = { first: { buffer, bytes: first }, second: { buffer, offset: 256 } };
        return bench.device.run([{ kernel, grid: [1, 1, 1], bindings }]);
      };
      await run(256);
      assert.deepEqual(
        (await bench.read(buffer)).filter((value) => value !== 0),
        [1, 2],
      );
      assert.equal(
        await faultOf(() => run(260)),
        "wrong-use: twoWriters.second: expected ranges that do not overlap, got buffer 'both', also bound to first. Bind another buffer.",
      );
      return undefined;
    },
  },
  {
    name: 'a grid with a zero launches nothing, and an empty run is done at once',
    async run(bench) {
      const output = bench.filled('output', [5, 5, 5, 5]);
      const bindings = { params: { buffer: bench.ones }, input: { buffer: bench.ones }, output: { buffer: output } };
      await bench.launch(bindings, [0, 1, 1]);
      await bench.launch(bindings, [1, 0, 1]);
      await bench.launch(bindings, [1, 1, 0]);
      await bench.device.run([]);
      assert.deepEqual(await bench.read(output), [5, 5, 5, 5]);
      return undefined;
    },
  },
  {
    name: 'a grid has three dimensions',
    async run(bench) {
      const output = bench.filled('output', Array(24).fill(999));
      const kernel = await bench.compileOne(bench.texts.blockIds);
      await bench.device.run([{ kernel, grid: [4, 3, 2], bindings: { output: { buffer: output } } }]);
      const expected = [0, 1].flatMap((z) => [0, 1, 2].flatMap((y) => [0, 1, 2, 3].map((x) => x + 10 * y + 100 * z)));
      assert.deepEqual(await bench.read(output), expected);
      return undefined;
    },
  },
  {
    name: 'a kernel may use eight buffers',
    async run(bench) {
      const { buffersPerKernel } = bench.device.limits;
      if (buffersPerKernel < 8) return `the device has ${buffersPerKernel} buffers a kernel`;
      const kernel = await bench.compileOne(bench.texts.eightBuffers);
      const inputs = [0, 1, 2, 3, 4, 5, 6].map((k) => bench.filled(`in${k}`, Array(32).fill(10 ** k)));
      const output = bench.zeros('output', 32);
      const bindings = Object.fromEntries(inputs.map((buffer, k) => [`in${k}`, { buffer }]));
      await bench.device.run([{ kernel, grid: [1, 1, 1], bindings: { ...bindings, output: { buffer: output } } }]);
      assert.deepEqual(await bench.read(output), Array(32).fill(7654321));
      return undefined;
    },
  },
  {
    name: 'a block reduces through shared memory',
    async run(bench) {
      const kernel = await bench.compileOne(bench.texts.reduce);
      const input = bench.filled('input', [...Array(192).keys()]);
      const output = bench.zeros('output', 3);
      const bindings = { input: { buffer: input }, output: { buffer: output } };
      await bench.device.run([{ kernel, grid: [3, 1, 1], bindings }]);
      assert.deepEqual(await bench.read(output), [2016, 6112, 10208]);
      return undefined;
    },
  },
  {
    name: 'a launch may ask for all the dynamic shared memory of the limits',
    async run(bench) {
      const { dynamic } = bench.texts;
      if (dynamic === undefined) return 'WGSL has no dynamic shared memory';
      // 48 KiB is what CUDA gives without being asked for more.
      for (const bytes of [4096, 49152, 49156, bench.device.limits.sharedBytes]) {
        const count = Math.floor(bytes / 4);
        const kernel = await bench.compileOne(dynamic(count));
        const [input, output] = [bench.filled('input', [count]), bench.zeros('output', 1)];
        const bindings = { input: { buffer: input }, output: { buffer: output } };
        await bench.device.run([{ kernel, grid: [1, 1, 1], bindings }]);
        assert.deepEqual(await bench.read(output), [((count * (count - 1)) / 2) % 2 ** 32]);
      }
      return undefined;
    },
  },
  {
    name: 'several entries of one text compile together, unused bindings included',
    async run(bench) {
      const kernels = await bench.device.compile(bench.texts.pair);
      const [output, unused] = [{ buffer: bench.zeros('output', 2) }, { buffer: bench.ones }];
      await bench.device.run(kernels.map((kernel) => ({ kernel, grid: [1, 1, 1], bindings: { output, unused } })));
      assert.deepEqual(await bench.read(output.buffer), [1, 2]);
      return undefined;
    },
  },
];
