import type { KernelDescriptor } from '../codegen/manifest.js';
import { type ErrorCode, KvforgeError } from '../dsl/errors.js';
import { shown } from './cache/checkInput.js';
import type { BufferRange, CompiledKernel, DeviceBuffer, DeviceLimits, KernelText, Launch } from './device.js';

/**
 * Checks of what callers hand to a device, before anything reaches it. Nothing here knows WebGPU: a device that calls
 * these functions gives the error texts that `test/runtime/conformance/` asks for.
 */

/** A buffer as its device sees it. */
export interface OwnBuffer extends DeviceBuffer {
  readonly released: boolean;
}

/** A binding of a launch with its defaults filled in. */
export interface BoundRange<B extends OwnBuffer> {
  readonly buffer: B;
  readonly offset: number;
  readonly bytes: number;
}

/** Finds the device's own buffer behind the public one; undefined for a buffer of another device. */
export type FindBuffer<B extends OwnBuffer> = (buffer: DeviceBuffer) => B | undefined;

/** Alignment that WebGPU asks of the start of a storage binding; the same everywhere, so that a launch is portable. */
const RANGE_ALIGNMENT = 256;

function fail(at: string, expected: string, received: string, hint: string, code: ErrorCode = 'wrong-use'): never {
  throw new KvforgeError(code, { at, expected, received, hint });
}

const isSize = (value: number): boolean => Number.isSafeInteger(value) && value >= 0;

export function checkOpen(at: string, open: boolean): void {
  if (!open) fail(at, 'an open device', 'a closed one', 'Open another device.');
}

export function checkAllocation(label: string, bytes: number, largest: number): void {
  const at = `buffer '${label}'`;
  if (!isSize(bytes) || bytes === 0 || bytes % 4 !== 0) {
    fail(at, 'a size that is a positive multiple of 4', `${bytes}`, 'Round the size up to whole 32-bit words.');
  }
  if (bytes > largest) {
    fail(
      at,
      `at most ${largest} bytes (the largest buffer of this device)`,
      `${bytes}`,
      'Split the data over several buffers.',
      'does-not-fit',
    );
  }
}

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null;

function checkLive<B extends OwnBuffer>(at: string, buffer: DeviceBuffer, find: FindBuffer<B>): B {
  if (!isObject(buffer)) fail(at, 'a buffer', shown(buffer), 'Pass what allocate() of the device gave.');
  const own = find(buffer);
  if (own === undefined) {
    fail(
      at,
      'a buffer of this device',
      `buffer '${buffer.label}' of another`,
      'Allocate it on the device that uses it.',
    );
  }
  if (own.released) {
    fail(at, 'a live buffer', `buffer '${own.label}', which was released`, 'Release a buffer after its last use.');
  }
  return own;
}

/** Checks data that goes into a buffer from `offset` on. */
export function checkWrite<B extends OwnBuffer>(
  buffer: DeviceBuffer,
  data: ArrayBufferView,
  offset: number,
  find: FindBuffer<B>,
): B {
  const at = transferOf('write', buffer);
  const own = checkLive(at, buffer, find);
  // Of a bare ArrayBuffer, or a list, nothing would be written.
  if (!ArrayBuffer.isView(data)) fail(at, 'a typed array or a DataView', shown(data), 'Wrap the data in a Uint8Array.');
  checkPart(at, own, offset, data.byteLength);
  return own;
}

/** Checks a part of a buffer that is read; what follows the offset if `bytes` are left out. */
export function checkRead<B extends OwnBuffer>(
  buffer: DeviceBuffer,
  offset: number,
  bytes: number | undefined,
  find: FindBuffer<B>,
): { readonly own: B; readonly size: number } {
  const at = transferOf('read', buffer);
  const own = checkLive(at, buffer, find);
  const size = bytes ?? own.bytes - offset;
  checkPart(at, own, offset, size);
  return { own, size };
}

function transferOf(verb: 'read' | 'write', buffer: DeviceBuffer): string {
  return isObject(buffer) ? `${verb} of buffer '${buffer.label}'` : verb;
}

function checkPart(at: string, own: OwnBuffer, offset: number, bytes: number): void {
  if (!isSize(offset) || offset % 4 !== 0) {
    fail(at, 'an offset that is a multiple of 4', `${offset}`, 'Start on a whole 32-bit word.');
  }
  // A default size is what is left after the offset; past the end that is negative, and better told as a range.
  if (offset + bytes > own.bytes || bytes < 0) {
    fail(
      at,
      `a range inside its ${own.bytes} bytes`,
      `bytes ${offset} to ${Math.max(offset + bytes, offset)}`,
      'Lower the offset or the size.',
    );
  }
  if (!isSize(bytes) || bytes % 4 !== 0) {
    fail(at, 'a size that is a multiple of 4', `${bytes} bytes`, 'Pad the data to whole 32-bit words.');
  }
}

/** Refuses what is no list of kernel texts: types do not reach everyone. */
export function checkKernelList(kernels: unknown): void {
  const [expected, hint] = [
    'a list of kernels { descriptor, source }',
    'Pass descriptors with the texts they belong to.',
  ];
  if (!Array.isArray(kernels)) fail('kernels', expected, shown(kernels), hint);
  for (const [index, kernel] of kernels.entries()) {
    if (isObject(kernel) && isObject((kernel as Partial<KernelText>).descriptor)) continue;
    fail(`kernels[${index}]`, 'a kernel { descriptor, source }', shown(kernel), hint);
  }
}

/** Refuses what is no list of launches in form, before a device looks at what they name. */
export function checkLaunchList(launches: unknown, at = 'launches'): void {
  if (!Array.isArray(launches)) fail(at, 'a list of launches', shown(launches), 'Put a single launch into a list.');
  for (const [index, launch] of launches.entries()) checkForm(launch, `${at}[${index}]`);
}

function checkForm(launch: unknown, at: string): void {
  const hint = 'Write it as the types say, or let LoadedKernels.launch() make it.';
  if (!isObject(launch)) fail(at, 'a launch { kernel, grid, bindings }', shown(launch), hint);
  const { kernel, grid, bindings } = launch as Partial<Record<keyof Launch, unknown>>;
  if (!isObject(kernel) || !isObject((kernel as Partial<CompiledKernel>).descriptor)) {
    fail(`${at}.kernel`, 'a kernel that compile() gave', shown(kernel), hint);
  }
  // A hole in a list would pass what is asked of every entry.
  if (!Array.isArray(grid) || grid.length !== 3 || grid.includes(undefined)) {
    const received = Array.isArray(grid) ? `[${Array.from(grid.slice(0, 5), shown).join(', ')}]` : shown(grid);
    fail(`${at}.grid`, 'blocks in x, y and z, a list of three numbers', received, hint);
  }
  if (!isObject(bindings)) fail(`${at}.bindings`, 'buffer ranges by name', shown(bindings), hint);
  for (const [name, range] of Object.entries(bindings)) {
    if (range === undefined || (isObject(range) && 'buffer' in range)) continue;
    fail(`${at}.bindings.${name}`, 'a buffer range { buffer }', shown(range), hint);
  }
}

/** Refuses a kernel that this device cannot run, before its text is compiled. */
export function checkKernel(
  { descriptor }: KernelText,
  device: { target: 'cuda' | 'wgsl'; limits: DeviceLimits; features: ReadonlySet<string> },
): void {
  const at = `${descriptor.file}: ${descriptor.entry}`;
  const { limits } = device;
  if (descriptor.target !== device.target) {
    fail(
      at,
      `a kernel for ${device.target}`,
      `one for ${descriptor.target}`,
      `Generate it with target '${device.target}'.`,
    );
  }
  const absent = descriptor.requires.filter((feature) => !device.features.has(feature));
  const shared = descriptor.sharedBytes.fixed + descriptor.sharedBytes.dynamic;
  const refuse = (expected: string, received: string, hint: string): never =>
    fail(at, expected, received, hint, 'missing-capability');
  if (absent.length > 0) {
    const has = [...device.features].sort().join(', ') || 'no optional feature';
    refuse(
      `a device with ${absent.join(', ')}`,
      `one with ${has}`,
      'Generate the kernel without it, or open a device that has it.',
    );
  }
  if (descriptor.bindings.length > limits.buffersPerKernel) {
    refuse(
      `at most ${limits.buffersPerKernel} buffers (the limit of this device)`,
      `${descriptor.bindings.length}`,
      'Pack several arrays into one buffer.',
    );
  }
  if (shared > limits.sharedBytes) {
    refuse(
      `at most ${limits.sharedBytes} bytes of shared memory (the limit of this device)`,
      `${shared}`,
      'Generate it with smaller tiles.',
    );
  }
  if (descriptor.threads > limits.threadsPerBlock) {
    refuse(
      `at most ${limits.threadsPerBlock} threads per block (the limit of this device)`,
      `${descriptor.threads}`,
      'Generate it with fewer threads.',
    );
  }
}

function checkRange<B extends OwnBuffer>(
  descriptor: KernelDescriptor,
  binding: KernelDescriptor['bindings'][number],
  range: BufferRange,
  limits: DeviceLimits,
  find: FindBuffer<B>,
): BoundRange<B> {
  const at = `${descriptor.entry}.${binding.name}`;
  const buffer = checkLive(at, range.buffer, find);
  const offset = range.offset ?? 0;
  const bytes = range.bytes ?? buffer.bytes - offset;
  if (!isSize(offset) || offset % RANGE_ALIGNMENT !== 0) {
    fail(
      at,
      `an offset that is a multiple of ${RANGE_ALIGNMENT}`,
      `${offset}`,
      `Start the range on a ${RANGE_ALIGNMENT}-byte boundary.`,
    );
  }
  if (offset >= buffer.bytes || offset + bytes > buffer.bytes) {
    fail(
      at,
      `a range inside buffer '${buffer.label}' of ${buffer.bytes} bytes`,
      `bytes ${offset} to ${Math.max(offset + bytes, offset)}`,
      'Lower the offset or the size, or allocate a larger buffer.',
    );
  }
  if (!isSize(bytes) || bytes === 0 || bytes % 4 !== 0) {
    fail(at, 'a size that is a positive multiple of 4', `${bytes} bytes`, 'Round the size to whole 32-bit words.');
  }
  if (bytes > limits.bytesPerBinding) {
    fail(
      at,
      `at most ${limits.bytesPerBinding} bytes (the largest binding of this device)`,
      `${bytes}`,
      'Split the work over several launches.',
      'does-not-fit',
    );
  }
  return { buffer, offset, bytes };
}

/**
 * WebGPU tracks use by whole buffer: one dispatch may not read a buffer that it also writes, not even another part of
 * it, and CUDA kernels declare their pointers `__restrict__`. So both are refused, as are two writers that overlap.
 */
function checkAliases<B extends OwnBuffer>(descriptor: KernelDescriptor, ranges: readonly BoundRange<B>[]): void {
  for (const [i, a] of ranges.entries()) {
    for (const [j, b] of ranges.entries()) {
      if (j <= i || a.buffer !== b.buffer) continue;
      const [first, second] = [descriptor.bindings[i]!, descriptor.bindings[j]!];
      const overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      const writers = Number(first.access === 'read_write') + Number(second.access === 'read_write');
      if (writers === 1 || (writers === 2 && overlap)) {
        fail(
          `${descriptor.entry}.${second.name}`,
          writers === 1 ? 'a buffer that the kernel does not both read and write' : 'ranges that do not overlap',
          `buffer '${a.buffer.label}', also bound to ${first.name}`,
          'Bind another buffer.',
        );
      }
    }
  }
}

/** Checks a launch and returns its ranges in binding order. */
export function checkLaunch<B extends OwnBuffer>(
  launch: Launch,
  descriptor: KernelDescriptor,
  limits: DeviceLimits,
  find: FindBuffer<B>,
): readonly BoundRange<B>[] {
  const most = limits.blocksPerDimension;
  if (!launch.grid.every((blocks) => isSize(blocks) && blocks <= most)) {
    fail(
      descriptor.entry,
      `a grid of 0 to ${most} blocks in each dimension`,
      launch.grid.join(' x '),
      'Fold the grid into another dimension, or split the launch.',
    );
  }
  const names = descriptor.bindings.map((binding) => binding.name);
  for (const name of Object.keys(launch.bindings)) {
    if (!names.includes(name)) {
      fail(
        `${descriptor.entry}.${name}`,
        `a binding among ${names.join(', ')}`,
        'an unknown name',
        `Remove ${name} from the bindings of the launch.`,
      );
    }
  }
  const ranges = descriptor.bindings.map((binding) => {
    const range = Object.hasOwn(launch.bindings, binding.name) ? launch.bindings[binding.name] : undefined;
    if (range === undefined) {
      fail(
        `${descriptor.entry}.${binding.name}`,
        'a buffer range',
        'nothing',
        `Add ${binding.name} to the bindings of the launch.`,
      );
    }
    return checkRange(descriptor, binding, range, limits, find);
  });
  checkAliases(descriptor, ranges);
  return ranges;
}
