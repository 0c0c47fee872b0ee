import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import type { BufferRange, CompiledKernel, Device, DeviceBuffer, KernelText } from '../../runtime/device.js';
import { type ConformanceKernels, conformanceKernels } from './device-conformance-kernels.js';

/** `code: message` of the KvforgeError that an action throws or rejects with; other errors pass through. */
export async function faultOf(action: () => unknown): Promise<string> {
  try {
    await action();
  } catch (error) {
    if (error instanceof KvforgeError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'no error';
}

export const words = (bytes: Uint8Array): number[] => [...new Uint32Array(bytes.slice().buffer)];

/** Asks of a device what `runtime/device.ts` promises. Call it inside a test file, once per device. */
export function deviceConformance(name: string, open: () => Promise<Device>): void {
  describe(`${name} as a Device`, () => {
    let device: Device;
    let texts: ConformanceKernels;
    let affine: CompiledKernel;
    let ones: DeviceBuffer;
    const skips: string[] = [];

    const filled = (label: string, values: readonly number[]): DeviceBuffer => {
      const buffer = device.allocate(label, values.length * 4);
      device.write(buffer, Uint32Array.from(values));
      return buffer;
    };
    const compileOne = async (text: KernelText): Promise<CompiledKernel> => (await device.compile([text]))[0]!;
    const launch = (bindings: Record<string, BufferRange>, grid: readonly [number, number, number] = [1, 1, 1]) =>
      device.run([{ kernel: affine, grid, bindings }]);

    beforeAll(async () => {
      device = await open();
      texts = conformanceKernels(device.target);
      affine = await compileOne(texts.affine);
      ones = filled('ones', [1, 1, 1, 1]);
    });
    afterAll(async () => {
      await device?.close();
      console.info(`${name}: ${skips.length} conformance tests skipped${skips.map((why) => `\n  ${why}`).join('')}`);
    });

    test('says what it is', () => {
      expect(device.description.length).toBeGreaterThan(0);
      expect(['emulator', 'webgpu', 'cuda']).toContain(device.kind);
      for (const limit of Object.values(device.limits)) expect(limit).toBeGreaterThan(0);
    });

    test('a buffer knows its label and size', () => {
      const buffer = device.allocate('keys', 48);
      expect([buffer.label, buffer.bytes]).toEqual(['keys', 48]);
      buffer.release();
      buffer.release();
    });

    test.each([0, -4, 6, 2.5, Number.NaN])('allocating %d bytes is refused', async (bytes) => {
      expect(await faultOf(() => device.allocate('keys', bytes))).toBe(
        `wrong-use: buffer 'keys': expected a size that is a positive multiple of 4, got ${bytes}. Round the size up to whole 32-bit words.`,
      );
    });

    test('writes at offsets read back, and touch nothing else', async () => {
      const range = fc.tuple(fc.nat(63), fc.nat(63)).map(([a, b]) => [Math.min(a, b), Math.max(a, b) + 1] as const);
      const write = fc.record({ range, seed: fc.nat(0xffff) });
      await fc.assert(
        fc.asyncProperty(fc.array(write, { minLength: 1, maxLength: 5 }), range, async (writes, [from, to]) => {
          const buffer = device.allocate('memory', 256);
          const model = new Uint32Array(64);
          device.write(buffer, model);
          for (const {
            range: [start, end],
            seed,
          } of writes) {
            const data = Uint32Array.from({ length: end - start }, (_, i) => seed * 64 + i);
            model.set(data, start);
            device.write(buffer, data, start * 4);
          }
          expect(words(await device.read(buffer, from * 4, (to - from) * 4))).toEqual([...model.slice(from, to)]);
          expect(words(await device.read(buffer, from * 4))).toEqual([...model.slice(from)]);
          buffer.release();
        }),
        { numRuns: 40 },
      );
    });

    test('takes any view whose size is a multiple of 4, also of the middle of its memory', async () => {
      const memory = new Uint8Array([9, 9, 1, 0, 0, 0, 2, 0, 0, 0, 9, 9]);
      const buffer = device.allocate('memory', 8);
      device.write(buffer, memory.subarray(2, 10));
      expect(words(await device.read(buffer))).toEqual([1, 2]);
      device.write(buffer, new DataView(memory.buffer, 6, 4), 0);
      device.write(buffer, new Float64Array(0), 8);
      expect(words(await device.read(buffer))).toEqual([2, 2]);
    });

    test('a write is a copy: later changes of the data do not show', async () => {
      const data = Uint32Array.of(1, 2);
      const buffer = device.allocate('memory', 8);
      device.write(buffer, data);
      data.fill(7);
      expect(words(await device.read(buffer))).toEqual([1, 2]);
    });

    test('a transfer outside a buffer or across words is refused', async () => {
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
      expect(faults).toEqual([
        "wrong-use: write of buffer 'small': expected a size that is a multiple of 4, got 6 bytes. Pad the data to whole 32-bit words.",
        "wrong-use: write of buffer 'small': expected an offset that is a multiple of 4, got 2. Start on a whole 32-bit word.",
        "wrong-use: write of buffer 'small': expected a range inside its 16 bytes, got bytes 4 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a range inside its 16 bytes, got bytes 0 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a range inside its 16 bytes, got bytes 20 to 20. Lower the offset or the size.",
        "wrong-use: read of buffer 'small': expected a size that is a multiple of 4, got 3 bytes. Pad the data to whole 32-bit words.",
        "wrong-use: read of buffer 'small': expected an offset that is a multiple of 4, got -4. Start on a whole 32-bit word.",
      ]);
    });

    test('a released buffer is refused everywhere', async () => {
      const gone = filled('gone', [1]);
      gone.release();
      const live = "a live buffer, got buffer 'gone', which was released. Release a buffer after its last use.";
      expect(await faultOf(() => device.write(gone, new Uint32Array(1)))).toBe(
        `wrong-use: write of buffer 'gone': expected ${live}`,
      );
      expect(await faultOf(() => device.read(gone))).toBe(`wrong-use: read of buffer 'gone': expected ${live}`);
      const bindings = { params: { buffer: ones }, input: { buffer: gone }, output: { buffer: filled('out', [0]) } };
      expect(await faultOf(() => launch(bindings))).toBe(`wrong-use: affine.input: expected ${live}`);
    });

    test('each launch of a run sees the writes of those before it', async () => {
      const params = filled('params', [100]);
      const [a, b] = [filled('a', Array(100).fill(0)), filled('b', Array(100).fill(0))];
      const step = (input: DeviceBuffer, output: DeviceBuffer) => ({
        kernel: affine,
        grid: [2, 1, 1] as const,
        bindings: { params: { buffer: params }, input: { buffer: input }, output: { buffer: output } },
      });
      await device.run(Array.from({ length: 12 }, (_, i) => (i % 2 === 0 ? step(a, b) : step(b, a))));
      // x -> 3x + 1, twelve times from 0.
      expect(words(await device.read(a))).toEqual(Array(100).fill((3 ** 12 - 1) / 2));
      expect(words(await device.read(b))).toEqual(Array(100).fill((3 ** 11 - 1) / 2));
    });

    test('calls that are not awaited take effect in the order they were made', async () => {
      const params = { buffer: filled('params', [64]) };
      const [a, b] = [filled('a', Array(64).fill(0)), filled('b', Array(64).fill(0))];
      const pending: Promise<unknown>[] = [];
      for (let i = 0; i < 5; i++) {
        pending.push(launch({ params, input: { buffer: a }, output: { buffer: b } }));
        pending.push(launch({ params, input: { buffer: b }, output: { buffer: a } }));
      }
      const before = device.read(a);
      device.write(a, new Uint32Array(64).fill(5));
      const after = device.read(a);
      await Promise.all(pending);
      expect(words(await before)).toEqual(Array(64).fill((3 ** 10 - 1) / 2));
      expect(words(await after)).toEqual(Array(64).fill(5));
    });

    test('ranges bind a part of a buffer', async () => {
      const memory = filled(
        'memory',
        Array.from({ length: 192 }, (_, i) => i),
      );
      const output = filled('output', Array(192).fill(0));
      const part = { offset: 256, bytes: 256 };
      await launch({
        params: { buffer: filled('params', [64]) },
        input: { buffer: memory, ...part },
        output: { buffer: output, ...part },
      });
      const expected = Array.from({ length: 192 }, (_, i) => (i >= 64 && i < 128 ? i * 3 + 1 : 0));
      expect(words(await device.read(output))).toEqual(expected);
    });

    test('a grid with a zero launches nothing, and an empty run is done at once', async () => {
      const output = filled('output', [5, 5, 5, 5]);
      const bindings = { params: { buffer: ones }, input: { buffer: ones }, output: { buffer: output } };
      await launch(bindings, [0, 1, 1]);
      await launch(bindings, [1, 0, 1]);
      await launch(bindings, [1, 1, 0]);
      await device.run([]);
      expect(words(await device.read(output))).toEqual([5, 5, 5, 5]);
    });

    test('a grid has three dimensions', async () => {
      const output = filled('output', Array(24).fill(999));
      const kernel = await compileOne(texts.blockIds);
      await device.run([{ kernel, grid: [4, 3, 2], bindings: { output: { buffer: output } } }]);
      const expected = [0, 1].flatMap((z) => [0, 1, 2].flatMap((y) => [0, 1, 2, 3].map((x) => x + 10 * y + 100 * z)));
      expect(words(await device.read(output))).toEqual(expected);
    });

    test('a kernel may use eight buffers', async (context) => {
      if (device.limits.buffersPerKernel < 8) {
        skips.push(`eight buffers: the device has ${device.limits.buffersPerKernel}`);
        context.skip(skips.at(-1)!);
      }
      const kernel = await compileOne(texts.eightBuffers);
      const inputs = [0, 1, 2, 3, 4, 5, 6].map((k) => filled(`in${k}`, Array(32).fill(10 ** k)));
      const output = filled('output', Array(32).fill(0));
      const bindings = Object.fromEntries(inputs.map((buffer, k) => [`in${k}`, { buffer }]));
      await device.run([{ kernel, grid: [1, 1, 1], bindings: { ...bindings, output: { buffer: output } } }]);
      expect(words(await device.read(output))).toEqual(Array(32).fill(7654321));
    });

    test('a block reduces through shared memory', async () => {
      const kernel = await compileOne(texts.reduce);
      const input = filled(
        'input',
        Array.from({ length: 192 }, (_, i) => i),
      );
      const output = filled('output', [0, 0, 0]);
      await device.run([
        { kernel, grid: [3, 1, 1], bindings: { input: { buffer: input }, output: { buffer: output } } },
      ]);
      expect(words(await device.read(output))).toEqual([2016, 6112, 10208]);
    });

    test('a launch with bad bindings is refused, whole, before any of its run starts', async () => {
      const output = filled('output', [0, 0, 0, 0]);
      const good = { params: { buffer: ones }, input: { buffer: ones }, output: { buffer: output } };
      const { params, input } = good;
      const refused = async (bindings: Record<string, BufferRange>) =>
        faultOf(() =>
          device.run([
            { kernel: affine, grid: [1, 1, 1], bindings: good },
            { kernel: affine, grid: [1, 1, 1], bindings },
          ]),
        );
      const faults = [
        await refused({ params, input }),
        await refused({ ...good, extra: input }),
        await refused({ ...good, output: { buffer: output, offset: 4 } }),
        await refused({ ...good, output: { buffer: output, offset: 256, bytes: 4 } }),
        await refused({ ...good, output: { buffer: output, bytes: 20 } }),
        await refused({ ...good, output: { buffer: output, bytes: 6 } }),
        await refused({ ...good, output: { buffer: output, bytes: 0 } }),
        await refused({ ...good, output: { buffer: ones } }),
        await refused({ ...good, output: { buffer: { label: 'fake', bytes: 4, release() {} } } }),
      ];
      expect(faults).toEqual([
        'wrong-use: affine.output: expected a buffer range, got nothing. Add output to the bindings of the launch.',
        'wrong-use: affine.extra: expected a binding among params, input, output, got an unknown name. Remove extra from the bindings of the launch.',
        'wrong-use: affine.output: expected an offset that is a multiple of 256, got 4. Start the range on a 256-byte boundary.',
        "wrong-use: affine.output: expected a range inside buffer 'output' of 16 bytes, got bytes 256 to 260. Lower the offset or the size, or allocate a larger buffer.",
        "wrong-use: affine.output: expected a range inside buffer 'output' of 16 bytes, got bytes 0 to 20. Lower the offset or the size, or allocate a larger buffer.",
        'wrong-use: affine.output: expected a size that is a positive multiple of 4, got 6 bytes. Round the size to whole 32-bit words.',
        'wrong-use: affine.output: expected a size that is a positive multiple of 4, got 0 bytes. Round the size to whole 32-bit words.',
        "wrong-use: affine.output: expected a buffer that the kernel does not both read and write, got buffer 'ones', also bound to params. Bind another buffer.",
        "wrong-use: affine.output: expected a buffer of this device, got buffer 'fake' of another. Allocate it on the device that uses it.",
      ]);
      expect(words(await device.read(output))).toEqual([0, 0, 0, 0]);
    });

    test('a grid outside the limits is refused', async () => {
      const bindings = { params: { buffer: ones }, input: { buffer: ones }, output: { buffer: filled('output', [0]) } };
      const most = device.limits.blocksPerDimension;
      const told = (grid: string) =>
        `wrong-use: affine: expected a grid of 0 to ${most} blocks in each dimension, got ${grid}. Fold the grid into another dimension, or split the launch.`;
      expect(await faultOf(() => launch(bindings, [1, 1, most + 1]))).toBe(told(`1 x 1 x ${most + 1}`));
      expect(await faultOf(() => launch(bindings, [1.5, 1, 1]))).toBe(told('1.5 x 1 x 1'));
      expect(await faultOf(() => launch(bindings, [1, -1, 1]))).toBe(told('1 x -1 x 1'));
    });

    test('a kernel that needs more than the device has is refused before it is compiled', async () => {
      const { descriptor, source } = texts.affine;
      const refused = (change: Partial<typeof descriptor>) =>
        faultOf(() => device.compile([{ descriptor: { ...descriptor, ...change }, source }]));
      const { sharedBytes, threadsPerBlock, buffersPerKernel } = device.limits;
      const other = device.target === 'cuda' ? 'wgsl' : 'cuda';
      const has = [...device.features].sort().join(', ') || 'no optional feature';
      const bindings = Array.from({ length: buffersPerKernel + 1 }, (_, i) => ({
        ...descriptor.bindings[0]!,
        name: `b${i}`,
      }));
      const { file } = descriptor;
      expect(await refused({ requires: ['teleport'] })).toBe(
        `missing-capability: ${file}: affine: expected a device with teleport, got one with ${has}. Generate the kernel without it, or open a device that has it.`,
      );
      expect(await refused({ sharedBytes: { fixed: 4, dynamic: sharedBytes } })).toBe(
        `missing-capability: ${file}: affine: expected at most ${sharedBytes} bytes of shared memory (the limit of this device), got ${sharedBytes + 4}. Generate it with smaller tiles.`,
      );
      expect(await refused({ threads: threadsPerBlock + 1 })).toBe(
        `missing-capability: ${file}: affine: expected at most ${threadsPerBlock} threads per block (the limit of this device), got ${threadsPerBlock + 1}. Generate it with fewer threads.`,
      );
      expect(await refused({ bindings })).toBe(
        `missing-capability: ${file}: affine: expected at most ${buffersPerKernel} buffers (the limit of this device), got ${buffersPerKernel + 1}. Pack several arrays into one buffer.`,
      );
      expect(await refused({ target: other })).toBe(
        `wrong-use: ${file}: affine: expected a kernel for ${device.target}, got one for ${other}. Generate it with target '${device.target}'.`,
      );
    });

    test('a kernel of another device is refused', async () => {
      const fault = await faultOf(() =>
        device.run([{ kernel: { descriptor: texts.affine.descriptor }, grid: [1, 1, 1], bindings: {} }]),
      );
      expect(fault).toBe(
        `wrong-use: ${texts.affine.descriptor.file}: affine: expected a kernel that this device compiled, got one of another device. Launch what compile() of this device returned.`,
      );
    });

    test('after close every call is refused, and closing twice is fine', async () => {
      const other = await open();
      const buffer = other.allocate('memory', 16);
      const [kernel] = await other.compile([texts.affine]);
      await Promise.all([other.close(), other.close()]);
      await other.close();
      buffer.release();
      const told = `wrong-use: ${other.kind} device: expected an open device, got a closed one. Open another device.`;
      expect(await faultOf(() => other.allocate('memory', 16))).toBe(told);
      expect(await faultOf(() => other.write(buffer, new Uint32Array(4)))).toBe(told);
      expect(await faultOf(() => other.read(buffer))).toBe(told);
      expect(await faultOf(() => other.compile([texts.affine]))).toBe(told);
      expect(await faultOf(() => other.run([{ kernel: kernel!, grid: [1, 1, 1], bindings: {} }]))).toBe(told);
      expect(words(await device.read(ones))).toEqual([1, 1, 1, 1]);
    });

    test('close waits for work that was started', async () => {
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
      await other.close();
      await run;
      for (const read of reads) expect(words(await read)).toEqual(Array(64).fill(10));
      expect(await compiled).toHaveLength(1);
    });
  });
}
