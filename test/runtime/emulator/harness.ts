import type { DeviceBuffer, KernelText } from '../../../runtime/device.js';
import type { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { faultOf } from '../conformance/bench.js';

export type Words = Float32Array | Uint32Array | Int32Array;
/** Words to upload, or the number of words of a fresh buffer. */
export type Argument = Words | number;

/** Runs a kernel once: one argument for each binding, in order. Gives the words of every binding afterwards. */
export async function launch(
  device: EmulatorDevice,
  text: KernelText,
  args: readonly Argument[],
  grid: readonly [number, number, number] = [1, 1, 1],
): Promise<ArrayBuffer[]> {
  const [kernel] = await device.compile([text]);
  const buffers: DeviceBuffer[] = args.map((argument, index) => {
    const name = text.descriptor.bindings[index]!.name;
    const buffer = device.allocate(name, (typeof argument === 'number' ? argument : argument.length) * 4);
    if (typeof argument !== 'number') device.write(buffer, argument);
    return buffer;
  });
  const names = text.descriptor.bindings.map((binding) => binding.name);
  const bindings = Object.fromEntries(names.map((name, index) => [name, { buffer: buffers[index]! }]));
  try {
    await device.run([{ kernel: kernel!, grid, bindings }]);
    const results = await Promise.all(buffers.map((buffer) => device.read(buffer)));
    return results.map((bytes) => bytes.buffer as ArrayBuffer);
  } finally {
    for (const buffer of buffers) buffer.release();
  }
}

/** The fault of one launch without its code, or 'no error'. */
export async function reportOf(
  device: EmulatorDevice,
  text: KernelText,
  args: readonly Argument[],
  grid?: readonly [number, number, number],
): Promise<string> {
  const fault = await faultOf(() => launch(device, text, args, grid));
  return fault.replace(/^kernel-fault: /, '');
}

/** Numbers in -1..1 from a seed. */
export function noise(seed: number): () => number {
  let state = seed * 2654435761 + 1;
  return () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5;
    state ^= state >>> 12;
    return (state | 0) / 2 ** 31;
  };
}
