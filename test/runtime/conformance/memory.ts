import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { DeviceBuffer } from '../../../runtime/device.js';
import { type ConformanceCase, faultOf, words } from './bench.js';

const writeDraws = (() => {
  const range = fc.tuple(fc.nat(63), fc.nat(63)).map(([a, b]) => [Math.min(a, b), Math.max(a, b) + 1] as const);
  const writes = fc.array(fc.record({ range, seed: fc.nat(0xffff) }), { minLength: 1, maxLength: 5 });
  return { writes, range };
})();

/** What buffers, writes and reads have to do. */
export const memoryCases: readonly ConformanceCase[] = [
  {
    name: 'says what it is',
    async run({ device }) {
      assert.ok(device.description.length > 0);
      assert.ok(['emulator', 'webgpu', 'cuda'].includes(device.kind));
      for (const limit of Object.values(device.limits)) assert.ok(limit > 0);
      assert.ok(device.identity.name.length > 0);
      assert.ok(device.identity.driver.length > 0);
      assert.ok(['device', 'host'].includes(device.clock));
      return undefined;
    },
  },
  {
    name: 'a buffer knows its label and size, and may be released twice',
    async run({ device }) {
      const buffer = device.allocate('keys', 48);
      assert.deepEqual([buffer.label, buffer.bytes], ['keys', 48]);
      buffer.release();
      buffer.release();
      return undefined;
    },
  },
  {
    name: 'a size that is no positive multiple of 4 is refused',
    async run({ device }) {
      for (const bytes of [0, -4, 6, 2.5, Number.NaN]) {
        assert.equal(
          await faultOf(() => device.allocate('keys', bytes)),
          `wrong-use: buffer 'keys': expected a size that is a positive multiple of 4, got ${bytes}. Round the size up to whole 32-bit words.`,
        );
      }
      return undefined;
    },
  },
  {
    name: 'a buffer beyond all memory does not fit, and the device goes on',
    async run(bench) {
      const fault = await faultOf(async () => bench.device.read(bench.device.allocate('huge', 2 ** 46), 0, 4));
      assert.match(fault, /^does-not-fit: /);
      assert.deepEqual(await bench.read(bench.filled('small', [1, 2])), [1, 2]);
      return undefined;
    },
  },
  {
    name: 'fresh memory is whole and keeps what is written into a part of it',
    async run({ device }) {
      const buffer = device.allocate('fresh', 1024);
      assert.equal((await device.read(buffer)).byteLength, 1024);
      const before = await device.read(buffer);
      device.write(buffer, Uint32Array.of(1, 2), 512);
      const after = await device.read(buffer);
      assert.deepEqual(words(after.subarray(512, 520)), [1, 2]);
      assert.deepEqual(after.subarray(0, 512), before.subarray(0, 512));
      assert.deepEqual(after.subarray(520), before.subarray(520));
      return undefined;
    },
  },
  {
    name: 'writes at offsets read back, and touch nothing else',
    async run({ device }) {
      await fc.assert(
        fc.asyncProperty(writeDraws.writes, writeDraws.range, async (writes, [from, to]) => {
          const buffer = device.allocate('memory', 256);
          const model = new Uint32Array(64);
          device.write(buffer, model);
          for (const { range, seed } of writes) {
            const [start, end] = range;
            const data = Uint32Array.from({ length: end - start }, (_, i) => seed * 64 + i);
            model.set(data, start);
            device.write(buffer, data, start * 4);
          }
          assert.deepEqual(words(await device.read(buffer, from * 4, (to - from) * 4)), [...model.slice(from, to)]);
          assert.deepEqual(words(await device.read(buffer, from * 4)), [...model.slice(from)]);
          buffer.release();
        }),
        { numRuns: 40 },
      );
      return undefined;
    },
  },
  {
    name: 'takes any view whose size is a multiple of 4, also of the middle of its memory',
    async run({ device }) {
      const memory = new Uint8Array([9, 9, 1, 0, 0, 0, 2, 0, 0, 0, 9, 9]);
      const buffer = device.allocate('memory', 8);
      device.write(buffer, memory.subarray(2, 10));
      assert.deepEqual(words(await device.read(buffer)), [1, 2]);
      device.write(buffer, new DataView(memory.buffer, 6, 4), 0);
      device.write(buffer, new Float64Array(0), 8);
      assert.deepEqual(words(await device.read(buffer)), [2, 2]);
      assert.equal((await device.read(buffer, 8)).byteLength, 0);
      return undefined;
    },
  },
  {
    name: 'a write is a copy: later changes of the data do not show',
    async run({ device }) {
      const data = new Uint32Array(1 << 18).fill(1);
      const buffer = device.allocate('memory', data.byteLength);
      device.write(buffer, data);
      data.fill(7);
      assert.ok(words(await device.read(buffer)).every((word) => word === 1));
      return undefined;
    },
  },
  {
    name: "what was read is the reader's own",
    async run(bench) {
      const buffer = bench.filled('memory', [1, 2]);
      const first = await bench.device.read(buffer);
      first.fill(9);
      assert.deepEqual(await bench.read(buffer), [1, 2]);
      assert.equal(first.byteOffset % 4, 0);
      return undefined;
    },
  },
  {
    name: 'a transfer outside a buffer or across words is refused',
    async run({ device }) {
      const buffer = device.allocate('small', 16);
      const faults = [
        await faultOf(() => device.write(buffer, new Uint8Array(6))),
        await faultOf(() => device.write(buffer, new Uint32Array(1), 2)),
        await faultOf(() => device.write(buffer, new Uint32Array(4), 4)),
        await faultOf(() => device.read(buffer, 0, 20)),
        await faultOf(() => device.read(buffer, 20)),
        await faultOf(() => device.read(buffer, 0, 3)),
        await faultOf(() => device.read(buffer, -4, 4)),
      ];
      assert.deepEqual(faults, [
        "wrong-use: write of buffer 'small': expected a size that is a multiple of 4, got 6 bytes. Pad the data to whole 32-bit words.",
        "wrong-use: write of buffer 'small': expected an offset that is a multiple of 4, got 2. Start on a whole 32-bit word.",
        "wrong-use: write of buffer 'small': expected a range inside its 16 bytes, got bytes 4 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a range inside its 16 bytes, got bytes 0 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a range inside its 16 bytes, got bytes 20 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a size that is a multiple of 4, got 3 bytes. Pad the data to whole 32-bit words.",
        "wrong-use: read of buffer 'small': expected an offset that is a multiple of 4, got -4. Start on a whole 32-bit word.",
      ]);
      return undefined;
    },
  },
  {
    name: 'what is no buffer or no typed array is refused',
    async run({ device }) {
      const buffer = device.allocate('small', 4);
      device.write(buffer, Uint32Array.of(5));
      const none = null as unknown as DeviceBuffer;
      for (const [data, received] of [
        [undefined, 'undefined'],
        [[7], 'a list'],
        // A view of it would be written, the memory itself silently not.
        [new ArrayBuffer(4), 'an object'],
      ] as const) {
        assert.equal(
          await faultOf(() => device.write(buffer, data as unknown as Uint32Array)),
          `wrong-use: write of buffer 'small': expected a typed array or a DataView, got ${received}. Wrap the data in a Uint8Array.`,
        );
      }
      const told = 'expected a buffer, got null. Pass what allocate() of the device gave.';
      assert.equal(await faultOf(() => device.write(none, new Uint32Array(1))), `wrong-use: write: ${told}`);
      assert.equal(await faultOf(() => device.read(none)), `wrong-use: read: ${told}`);
      assert.deepEqual(words(await device.read(buffer)), [5]);
      return undefined;
    },
  },
  {
    name: 'a released buffer is refused everywhere',
    async run(bench) {
      const { device, ones } = bench;
      const gone = bench.filled('gone', [1]);
      gone.release();
      const live = "a live buffer, got buffer 'gone', which was released. Release a buffer after its last use.";
      assert.equal(
        await faultOf(() => device.write(gone, new Uint32Array(1))),
        `wrong-use: write of buffer 'gone': expected ${live}`,
      );
      assert.equal(await faultOf(() => device.read(gone)), `wrong-use: read of buffer 'gone': expected ${live}`);
      const output = { buffer: bench.zeros('out', 1) };
      const bindings = { params: { buffer: ones }, input: { buffer: gone }, output };
      assert.equal(await faultOf(() => bench.launch(bindings)), `wrong-use: affine.input: expected ${live}`);
      return undefined;
    },
  },
  {
    name: 'a buffer of another device is refused',
    async run({ device, open }) {
      const other = await open();
      const foreign = other.allocate('foreign', 4);
      const told = "a buffer of this device, got buffer 'foreign' of another. Allocate it on the device that uses it.";
      const faults = [
        await faultOf(() => device.write(foreign, new Uint32Array(1))),
        await faultOf(() => device.read(foreign)),
      ];
      await other.close();
      assert.deepEqual(faults, [
        `wrong-use: write of buffer 'foreign': expected ${told}`,
        `wrong-use: read of buffer 'foreign': expected ${told}`,
      ]);
      return undefined;
    },
  },
];
