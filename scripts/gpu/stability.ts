import type { BufferRange, Device, DeviceBuffer, Launch } from '../../runtime/device.js';

export interface Stability {
  readonly entry: string;
  /** Launches that were made. */
  readonly launches: number;
  /** Launches whose output was not that of the first, in any byte of any binding. */
  readonly differing: number;
  /** Bytes compared a launch. */
  readonly bytes: number;
}

export interface RepeatLimits {
  readonly launches: number;
  /** For one kernel: no launch is begun after them. */
  readonly seconds: number;
}

/**
 * A device that repeats the first launch of every kernel on the same input and compares all that it may write, byte by
 * byte. What the launch leaves behind is what one launch leaves.
 */
export function repeating(device: Device, limits: RepeatLimits, found: Map<string, Stability>): Device {
  const run = async (list: readonly Launch[]): Promise<void> => {
    for (const launch of list) {
      const { entry } = launch.kernel.descriptor;
      if (found.has(entry) || launch.grid.some((blocks) => blocks === 0)) await device.run([launch]);
      else found.set(entry, await repeated(device, launch, limits));
    }
  };
  return new Proxy(device, {
    get(target, name) {
      if (name === 'run') return run;
      const member: unknown = Reflect.get(target, name);
      return typeof member === 'function' ? member.bind(target) : member;
    },
  });
}

interface Written {
  readonly buffer: DeviceBuffer;
  readonly offset: number;
  readonly before: Uint8Array;
}

async function repeated(device: Device, launch: Launch, { launches, seconds }: RepeatLimits): Promise<Stability> {
  const { entry, bindings } = launch.kernel.descriptor;
  const written: Written[] = [];
  for (const { name, access } of bindings) {
    if (access !== 'read_write') continue;
    const { buffer, offset = 0, bytes = buffer.bytes - offset }: BufferRange = launch.bindings[name]!;
    written.push({ buffer, offset, before: await device.read(buffer, offset, bytes) });
  }
  let first: readonly Uint8Array[] | undefined;
  const started = performance.now();
  let [made, differing] = [0, 0];
  while (made < launches && (made < 2 || performance.now() - started < seconds * 1000)) {
    made++;
    for (const { buffer, offset, before } of written) device.write(buffer, before, offset);
    await device.run([launch]);
    const after = await Promise.all(written.map((w) => device.read(w.buffer, w.offset, w.before.byteLength)));
    first ??= after;
    if (after.some((bytes, i) => Buffer.compare(bytes, first![i]!) !== 0)) differing++;
  }
  const bytes = written.reduce((sum, { before }) => sum + before.byteLength, 0);
  return { entry, launches: made, differing, bytes };
}
