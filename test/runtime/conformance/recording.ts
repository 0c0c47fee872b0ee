import assert from 'node:assert/strict';
import type { Launch, TimeOptions } from '../../../runtime/device.js';
import { type ConformanceCase, faultOf, words } from './bench.js';

/** What recordings and timings have to do. */
export const recordingCases: readonly ConformanceCase[] = [
  {
    name: 'a recording runs in order, again and again, on what the buffers hold then',
    async run(bench) {
      const { device } = bench;
      const [a, b] = [bench.zeros('a', 100), bench.zeros('b', 100)];
      const recording = await device.record([bench.step(a, b, 100), bench.step(b, a, 100)]);
      // Recording runs nothing.
      assert.deepEqual(await bench.read(b), Array(100).fill(0));
      await recording.run();
      await recording.run();
      assert.deepEqual(await bench.read(a), Array(100).fill((3 ** 4 - 1) / 2));
      device.write(a, new Uint32Array(100).fill(7));
      await recording.run();
      assert.deepEqual(await bench.read(b), Array(100).fill(22));
      assert.deepEqual(await bench.read(a), Array(100).fill(67));
      recording.release();
      return undefined;
    },
  },
  {
    name: 'runs of recordings keep their order with other calls that are not awaited',
    async run(bench) {
      const { device } = bench;
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const forth = await device.record([bench.step(a, b, 64)]);
      const back = bench.step(b, a, 64);
      const pending: Promise<unknown>[] = [];
      for (let i = 0; i < 5; i++) pending.push(forth.run(), device.run([back]));
      const before = device.read(a);
      device.write(a, new Uint32Array(64).fill(5));
      pending.push(forth.run());
      const after = device.read(b);
      await Promise.all(pending);
      assert.deepEqual(words(await before), Array(64).fill((3 ** 10 - 1) / 2));
      assert.deepEqual(words(await after), Array(64).fill(16));
      forth.release();
      return undefined;
    },
  },
  {
    name: 'a recording keeps the launches as they were when it was made',
    async run(bench) {
      const [a, b, c] = [bench.filled('a', Array(64).fill(1)), bench.zeros('b', 64), bench.zeros('c', 64)];
      const step = bench.step(a, b, 64);
      const bindings = { ...step.bindings };
      const launches: Launch[] = [{ ...step, bindings }];
      const recording = await bench.device.record(launches);
      bindings.output = { buffer: c };
      launches.push(bench.step(b, c, 64));
      await recording.run();
      assert.deepEqual(await bench.read(b), Array(64).fill(4));
      assert.deepEqual(await bench.read(c), Array(64).fill(0));
      recording.release();
      return undefined;
    },
  },
  {
    name: 'a launch without blocks may be recorded, also alone',
    async run(bench) {
      const [a, b] = [bench.filled('a', Array(64).fill(1)), bench.zeros('b', 64)];
      const step = bench.step(a, b, 64);
      const nothing: Launch = { ...step, grid: [1, 0, 1] };
      const none = await bench.device.record([nothing]);
      await none.run();
      assert.deepEqual(await bench.read(b), Array(64).fill(0));
      const some = await bench.device.record([nothing, step, nothing]);
      await some.run();
      assert.deepEqual(await bench.read(b), Array(64).fill(4));
      none.release();
      some.release();
      return undefined;
    },
  },
  {
    name: 'a bad launch is refused when it is recorded or timed, and an empty list too',
    async run(bench) {
      const { device } = bench;
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const good = bench.step(a, b, 64);
      const { output: _, ...rest } = good.bindings;
      const bad: Launch = { ...good, bindings: rest };
      const options: TimeOptions = { samples: 1, rounds: 1 };
      const missing =
        'wrong-use: affine.output: expected a buffer range, got nothing. Add output to the bindings of the launch.';
      assert.equal(await faultOf(() => device.record([good, bad])), missing);
      assert.equal(await faultOf(() => device.time([[good], [bad]], options)), missing);
      assert.equal(
        await faultOf(() => device.record([])),
        'wrong-use: launches: expected at least one launch, got none. Leave out what runs nothing.',
      );
      assert.equal(
        await faultOf(() => device.time([], options)),
        'wrong-use: lists: expected at least one list of launches, got none. Give one list, or several that do the same on different buffers.',
      );
      assert.equal(
        await faultOf(() => device.time([[good], []], options)),
        'wrong-use: lists[1]: expected at least one launch, got none. Leave out what runs nothing.',
      );
      assert.deepEqual(await bench.read(b), Array(64).fill(0));
      return undefined;
    },
  },
  {
    name: 'a released recording is refused, and releasing twice is fine',
    async run(bench) {
      const [a, b] = [bench.filled('a', Array(64).fill(1)), bench.zeros('b', 64)];
      const recording = await bench.device.record([bench.step(a, b, 64)]);
      // Released behind a run, which still takes effect.
      const run = recording.run();
      recording.release();
      recording.release();
      await run;
      assert.deepEqual(await bench.read(b), Array(64).fill(4));
      assert.equal(
        await faultOf(() => recording.run()),
        'wrong-use: recording: expected a live recording, got one that was released. Record the launches again.',
      );
      return undefined;
    },
  },
  {
    name: 'a recording whose buffer was released is refused',
    async run(bench) {
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const recording = await bench.device.record([bench.step(a, b, 64)]);
      a.release();
      assert.equal(
        await faultOf(() => recording.run()),
        "wrong-use: affine.input: expected a live buffer, got buffer 'a', which was released. Release a buffer after its last use.",
      );
      recording.release();
      assert.deepEqual(await bench.read(b), Array(64).fill(0));
      return undefined;
    },
  },
  {
    name: 'a timing is positive, one number a sample, and runs every list as often as it says',
    async run(bench) {
      const kernel = await bench.compileOne(bench.texts.grow);
      const [a, b] = [bench.zeros('a', 1), bench.zeros('b', 1)];
      const grow = (buffer: typeof a): Launch => ({ kernel, grid: [1, 1, 1], bindings: { output: { buffer } } });
      const lists = [[grow(a)], [grow(b), grow(b)]];
      const started = performance.now();
      const times = await bench.device.time(lists, { samples: 3, rounds: 50 });
      const passed = (performance.now() - started) * 1000;
      assert.equal(times.length, 3);
      for (const time of times) assert.ok(Number.isFinite(time) && time > 0, `${time} us`);
      // 50 rounds of two lists a sample; a device's clock may run a little fast.
      const told = times.reduce((sum, time) => sum + time * 50 * 2, 0);
      assert.ok(told <= passed * 1.05, `${told} us of ${passed}`);
      // One round is a warm-up, on top of three samples.
      const counted = (launches: number) => {
        let value = 0;
        for (let i = 0; i < launches; i++) value = (Math.imul(value, 3) + 1) >>> 0;
        return value;
      };
      assert.deepEqual(await bench.read(a), [counted(151)]);
      assert.deepEqual(await bench.read(b), [counted(302)]);
      return undefined;
    },
  },
  {
    name: 'more work takes longer',
    async run(bench) {
      const kernel = await bench.compileOne(bench.texts.grow);
      const buffer = bench.zeros('a', 1);
      const one: Launch = { kernel, grid: [1, 1, 1], bindings: { output: { buffer } } };
      // The least of several, and far apart: a host's clock counts what else the machine does.
      const least = async (count: number) =>
        Math.min(...(await bench.device.time([Array<Launch>(count).fill(one)], { samples: 4, rounds: 1 })));
      const [short, long] = [await least(10), await least(2000)];
      assert.ok(long > 2 * short, `${short} us for 10 launches, ${long} us for 2000`);
      return undefined;
    },
  },
  {
    name: 'a sample that is too much to be given to a device at once is refused',
    async run(bench) {
      if (bench.device.clock === 'host') return 'the host waits for every round of it';
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const lists = [[bench.step(a, b, 64)], [bench.step(a, b, 64)]];
      assert.equal(
        await faultOf(() => bench.device.time(lists, { samples: 1, rounds: 2 ** 17 + 1 })),
        'wrong-use: launches of a sample: expected a whole number from 0 to 262144, got 262146. Take more samples, of fewer rounds.',
      );
      assert.deepEqual(await bench.read(b), Array(64).fill(0));
      return undefined;
    },
  },
  {
    name: 'samples and rounds are whole numbers from 1 on',
    async run(bench) {
      const [a, b] = [bench.zeros('a', 64), bench.zeros('b', 64)];
      const lists = [[bench.step(a, b, 64)]];
      for (const bad of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
        assert.equal(
          await faultOf(() => bench.device.time(lists, { samples: bad, rounds: 1 })),
          `wrong-use: samples: expected a whole number from 1 to 1048576, got ${bad}. Ask for one sample or more.`,
        );
        assert.equal(
          await faultOf(() => bench.device.time(lists, { samples: 1, rounds: bad })),
          `wrong-use: rounds: expected a whole number from 1 to 1048576, got ${bad}. Run every list once or more.`,
        );
      }
      assert.deepEqual(await bench.read(b), Array(64).fill(0));
      return undefined;
    },
  },
];
