import assert from 'node:assert/strict';
import { type ConformanceCase, faultOf, words } from './bench.js';

/** What opening several devices and closing them has to do. */
export const lifetimeCases: readonly ConformanceCase[] = [
  {
    name: 'after close every call is refused, and closing twice is fine',
    async run(bench) {
      const { texts } = bench;
      const other = await bench.open();
      const make = () => ({ buffer: other.allocate('memory', 256) });
      const [kernel] = await other.compile([texts.affine]);
      const bindings = { params: make(), input: make(), output: make() };
      const launch = { kernel: kernel!, grid: [1, 1, 1], bindings } as const;
      const { buffer } = bindings.input;
      const recording = await other.record([launch]);
      await Promise.all([other.close(), other.close()]);
      await other.close();
      // A device of several is named with its number.
      const refusal = async (call: () => unknown) => (await faultOf(call)).replace(/ device \d+:/, ' device:');
      const told = `wrong-use: ${other.kind} device: expected an open device, got a closed one. Open another device.`;
      assert.equal(await refusal(() => other.allocate('memory', 16)), told);
      assert.equal(await refusal(() => other.write(buffer, new Uint32Array(4))), told);
      assert.equal(await refusal(() => other.read(buffer)), told);
      assert.equal(await refusal(() => other.compile([texts.affine])), told);
      assert.equal(await refusal(() => other.run([launch])), told);
      assert.equal(await refusal(() => other.record([launch])), told);
      assert.equal(await refusal(() => other.time([[launch]], { samples: 1, rounds: 1 })), told);
      assert.equal(await refusal(() => recording.run()), told);
      recording.release();
      buffer.release();
      assert.deepEqual(await bench.read(bench.ones), [1, 1, 1, 1]);
      return undefined;
    },
  },
  {
    name: 'close waits for work that was started',
    async run({ texts, open }) {
      const other = await open();
      const [kernel] = await other.compile([texts.affine]);
      const make = (label: string, value: number) => {
        const buffer = other.allocate(label, 256);
        other.write(buffer, new Uint32Array(64).fill(value));
        return { buffer };
      };
      const bindings = { params: make('params', 64), input: make('input', 3), output: make('output', 0) };
      const run = other.run(Array(100).fill({ kernel: kernel!, grid: [1, 1, 1], bindings }));
      const reads = Array.from({ length: 20 }, () => other.read(bindings.output.buffer));
      const compiled = other.compile([texts.reduce]);
      const timed = other.time([[{ kernel: kernel!, grid: [1, 1, 1], bindings }]], { samples: 3, rounds: 20 });
      await other.close();
      await run;
      assert.equal((await timed).length, 3);
      for (const read of reads) assert.deepEqual(words(await read), Array(64).fill(10));
      assert.equal((await compiled).length, 1);
      return undefined;
    },
  },
  {
    name: 'two devices work side by side',
    async run(bench) {
      const other = await bench.open();
      try {
        const [kernel] = await other.compile([bench.texts.grow]);
        const own = await bench.compileOne(bench.texts.grow);
        const [a, b] = [bench.zeros('a', 1), other.allocate('b', 4)];
        other.write(b, Uint32Array.of(100));
        const launchOf = (of: typeof own, buffer: typeof a) =>
          ({ kernel: of, grid: [1, 1, 1], bindings: { output: { buffer } } }) as const;
        await Promise.all([
          bench.device.run([launchOf(own, a)]),
          other.run([launchOf(kernel!, b)]),
          bench.device.run([launchOf(own, a)]),
        ]);
        assert.deepEqual(await bench.read(a), [4]);
        assert.deepEqual(words(await other.read(b)), [301]);
      } finally {
        await other.close();
      }
      return undefined;
    },
  },
];
