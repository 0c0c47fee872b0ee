import type { DeviceBuffer } from '../device.js';
import type { LoadedKernels } from '../kernels.js';

/** A binding's contents: data, or a size to be left undefined. */
export type Contents = Float32Array | Uint32Array | Int32Array | Uint16Array | Uint8Array | { readonly bytes: number };

/**
 * Runs one kernel on fresh buffers and reads back every binding that it may write.
 *
 * @param dimensions for the grid: middleTokens, tokens, sequences, workItems
 */
export async function runKernel(
  kernels: LoadedKernels<unknown>,
  entry: string,
  dimensions: Readonly<Record<string, number>>,
  contents: Readonly<Record<string, Contents>>,
): Promise<Readonly<Record<string, Uint8Array>>> {
  const { device } = kernels;
  const buffers: Record<string, DeviceBuffer> = {};
  try {
    for (const [name, value] of Object.entries(contents)) {
      const bytes = ArrayBuffer.isView(value) ? value.byteLength : value.bytes;
      const buffer = device.allocate(name, Math.max(4, Math.ceil(bytes / 4) * 4));
      buffers[name] = buffer;
      if (ArrayBuffer.isView(value) && value.byteLength > 0) device.write(buffer, padToWords(value));
    }
    const launch = kernels.launch(
      entry,
      dimensions,
      Object.fromEntries(Object.entries(buffers).map(([name, buffer]) => [name, { buffer }])),
    );
    await device.run([launch]);
    const outputs: Record<string, Uint8Array> = {};
    for (const { name, access } of launch.kernel.descriptor.bindings) {
      if (access === 'read_write') outputs[name] = (await device.read(buffers[name]!)).slice();
    }
    return outputs;
  } finally {
    for (const buffer of Object.values(buffers)) buffer.release();
  }
}

function padToWords(view: ArrayBufferView): Uint8Array {
  const bytes = new Uint8Array(Math.ceil(view.byteLength / 4) * 4);
  bytes.set(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
  return bytes;
}

export function asFloats(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}

export function asWords(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
}

export function asHalfBits(bytes: Uint8Array): Uint16Array {
  return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
}
