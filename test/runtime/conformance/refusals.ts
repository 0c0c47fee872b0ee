import assert from 'node:assert/strict';
import type { BufferRange, KernelText, Launch } from '../../../runtime/device.js';
import { type ConformanceCase, faultOf } from './bench.js';

/** What a device has to refuse, and in which words. */
export const refusalCases: readonly ConformanceCase[] = [
  {
    name: 'a launch with bad bindings is refused, whole, before any of its run starts',
    async run(bench) {
      const { device, affine: kernel, ones } = bench;
      const output = bench.zeros('output', 4);
      const good = { params: { buffer: ones }, input: { buffer: ones }, output: { buffer: output } };
      const { params, input } = good;
      const refused = (bindings: Record<string, BufferRange>) =>
        faultOf(() =>
          device.run([
            { kernel, grid: [1, 1, 1], bindings: good },
            { kernel, grid: [1, 1, 1], bindings },
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
      assert.deepEqual(faults, [
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
      assert.deepEqual(await bench.read(output), [0, 0, 0, 0]);
      return undefined;
    },
  },
  {
    name: 'what is no list of launches is refused, before any of its run starts',
    async run(bench) {
      const { device, affine: kernel, ones } = bench;
      const output = bench.zeros('output', 4);
      const bindings = { params: { buffer: ones }, input: { buffer: ones }, output: { buffer: output } };
      const good: Launch = { kernel, grid: [1, 1, 1], bindings };
      // As plain JavaScript may call it.
      const launchOf = (change: object) => ({ ...good, ...change }) as unknown as Launch;
      const hint = 'Write it as the types say, or let LoadedKernels.launch() make it.';
      const grid = 'launches[1].grid: expected blocks in x, y and z, a list of three numbers';
      const range = 'launches[1].bindings.output: expected a buffer range { buffer }';
      const bad: readonly (readonly [Launch, string])[] = [
        [null as unknown as Launch, 'launches[1]: expected a launch { kernel, grid, bindings }, got null'],
        [launchOf({ kernel: undefined }), 'launches[1].kernel: expected a kernel that compile() gave, got undefined'],
        [launchOf({ kernel: {} }), 'launches[1].kernel: expected a kernel that compile() gave, got an object'],
        [launchOf({ grid: undefined }), `${grid}, got undefined`],
        [launchOf({ grid: 3 }), `${grid}, got 3`],
        [launchOf({ grid: [1, 1] }), `${grid}, got [1, 1]`],
        [launchOf({ grid: [1, 1, 1, 1] }), `${grid}, got [1, 1, 1, 1]`],
        [launchOf({ grid: [1, undefined, 1] }), `${grid}, got [1, undefined, 1]`],
        [launchOf({ bindings: null }), 'launches[1].bindings: expected buffer ranges by name, got null'],
        [launchOf({ bindings: { ...bindings, output } }), `${range}, got an object`],
        [launchOf({ bindings: { ...bindings, output: null } }), `${range}, got null`],
      ];
      const options = { samples: 1, rounds: 1 };
      for (const [launch, told] of bad) {
        assert.equal(await faultOf(() => device.run([good, launch])), `wrong-use: ${told}. ${hint}`);
        assert.equal(await faultOf(() => device.record([good, launch])), `wrong-use: ${told}. ${hint}`);
        assert.equal(
          await faultOf(() => device.time([[good, launch]], options)),
          `wrong-use: lists[0]${`${told}. ${hint}`.slice(8)}`,
        );
      }
      const holes = [1, 1, 1];
      delete holes[1];
      assert.equal(
        await faultOf(() => device.run([good, launchOf({ grid: holes })])),
        `wrong-use: ${grid}, got [1, undefined, 1]. ${hint}`,
      );
      assert.equal(
        await faultOf(() => device.run([launchOf({ bindings: { ...bindings, output: { buffer: null } } })])),
        'wrong-use: affine.output: expected a buffer, got null. Pass what allocate() of the device gave.',
      );
      assert.equal(
        await faultOf(() => device.run(good as unknown as Launch[])),
        'wrong-use: launches: expected a list of launches, got an object. Put a single launch into a list.',
      );
      assert.equal(
        await faultOf(() => device.record(undefined as unknown as Launch[])),
        'wrong-use: launches: expected at least one launch, got undefined. Leave out what runs nothing.',
      );
      assert.equal(
        await faultOf(() => device.compile(bench.texts.affine as unknown as KernelText[])),
        'wrong-use: kernels: expected a list of kernels { descriptor, source }, got an object. Pass descriptors with the texts they belong to.',
      );
      assert.equal(
        await faultOf(() => device.compile([null as unknown as KernelText])),
        'wrong-use: kernels[0]: expected a kernel { descriptor, source }, got null. Pass descriptors with the texts they belong to.',
      );
      assert.deepEqual(await bench.read(output), [0, 0, 0, 0]);
      await device.run([good]);
      assert.deepEqual(await bench.read(output), [4, 0, 0, 0]);
      return undefined;
    },
  },
  {
    name: 'a grid outside the limits is refused',
    async run(bench) {
      const output = { buffer: bench.zeros('output', 1) };
      const bindings = { params: { buffer: bench.ones }, input: { buffer: bench.ones }, output };
      const most = bench.device.limits.blocksPerDimension;
      const told = (grid: string) =>
        `wrong-use: affine: expected a grid of 0 to ${most} blocks in each dimension, got ${grid}. Fold the grid into another dimension, or split the launch.`;
      assert.equal(await faultOf(() => bench.launch(bindings, [1, 1, most + 1])), told(`1 x 1 x ${most + 1}`));
      assert.equal(await faultOf(() => bench.launch(bindings, [1.5, 1, 1])), told('1.5 x 1 x 1'));
      assert.equal(await faultOf(() => bench.launch(bindings, [1, -1, 1])), told('1 x -1 x 1'));
      return undefined;
    },
  },
  {
    name: 'a kernel that needs more than the device has is refused before it is compiled',
    async run({ device, texts }) {
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
      assert.equal(
        await refused({ requires: ['teleport'] }),
        `missing-capability: ${file}: affine: expected a device with teleport, got one with ${has}. Generate the kernel without it, or open a device that has it.`,
      );
      assert.equal(
        await refused({ sharedBytes: { fixed: 4, dynamic: sharedBytes } }),
        `missing-capability: ${file}: affine: expected at most ${sharedBytes} bytes of shared memory (the limit of this device), got ${sharedBytes + 4}. Generate it with smaller tiles.`,
      );
      assert.equal(
        await refused({ threads: threadsPerBlock + 1 }),
        `missing-capability: ${file}: affine: expected at most ${threadsPerBlock} threads per block (the limit of this device), got ${threadsPerBlock + 1}. Generate it with fewer threads.`,
      );
      assert.equal(
        await refused({ bindings }),
        `missing-capability: ${file}: affine: expected at most ${buffersPerKernel} buffers (the limit of this device), got ${buffersPerKernel + 1}. Pack several arrays into one buffer.`,
      );
      assert.equal(
        await refused({ target: other }),
        `wrong-use: ${file}: affine: expected a kernel for ${device.target}, got one for ${other}. Generate it with target '${device.target}'.`,
      );
      return undefined;
    },
  },
  {
    name: 'an error in the text names file and line, and the device goes on',
    async run(bench) {
      const { text, line } = bench.texts.broken;
      const fault = await faultOf(() => bench.device.compile([bench.texts.affine, text]));
      assert.match(fault, new RegExp(`^compile-failed: ${text.descriptor.file.replace('.', '\\.')}:${line}(:|: )`));
      assert.match(fault, /nothing_of_this_name/);
      await bench.compileOne(bench.texts.affine);
      return undefined;
    },
  },
  {
    name: 'a kernel of another device is refused',
    async run({ device, texts }) {
      const { descriptor } = texts.affine;
      const told = `wrong-use: ${descriptor.file}: affine: expected a kernel that this device compiled, got one of another device. Launch what compile() of this device returned.`;
      const launch = { kernel: { descriptor }, grid: [1, 1, 1], bindings: {} } as const;
      assert.equal(await faultOf(() => device.run([launch])), told);
      assert.equal(await faultOf(() => device.record([launch])), told);
      assert.equal(await faultOf(() => device.time([[launch]], { samples: 1, rounds: 1 })), told);
      return undefined;
    },
  },
];
