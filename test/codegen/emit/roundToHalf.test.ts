import { expect, test } from 'vitest';
import { printWgsl } from '../../../codegen/emit/wgsl.js';
import { toHalf } from '../../../runtime/reference/index.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';

const scratch = new DataView(new ArrayBuffer(4));
const bitsOf = (value: number): number => {
  scratch.setFloat32(0, value);
  return scratch.getUint32(0);
};

/** The half that is `index` halves above zero; the one past the largest stands for infinity. */
function half(index: number): number {
  const [exponent, fraction] = [index >> 10, index & 1023];
  return exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
}

/** Every half, and the floats at and beside the middle between it and the next one, of both signs. */
function inputs(): Uint32Array {
  const found: number[] = [];
  for (let index = 0; index <= 0x7bff; index++) {
    const middle = bitsOf((half(index) + half(index + 1)) / 2);
    for (const bits of [bitsOf(half(index)), middle - 1, middle, middle + 1]) {
      found.push(bits, (bits | 0x80000000) >>> 0);
    }
  }
  return Uint32Array.from(found);
}

test('WGSL rounds to halves as float16 does, at every midpoint, without a conversion', async () => {
  const helper = printWgsl([], 'round_to_half(');
  expect(helper).not.toMatch(/f16\(|pack2x16float|quantizeToF16/);
  const words = inputs();
  const word = (name: string, access: 'read' | 'read_write') =>
    ({ name, access, element: 'u32', holds: 'f32' }) as const;
  const grid = [words.length / 64, 1, 1] as const;
  const device = await WebGpuDevice.open({ adapter: 'software' });
  const [kernel] = await device.compile([
    {
      source: `${helper}
@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64) fn rounding(@builtin(global_invocation_id) id: vec3u) {
  output[id.x] = bitcast<u32>(round_to_half(bitcast<f32>(input[id.x])));
}`,
      descriptor: {
        stage: 'test',
        entry: 'rounding',
        file: 'rounding.wgsl',
        target: 'wgsl',
        bindings: [word('input', 'read'), word('output', 'read_write')],
        threads: 64,
        grid,
        sharedBytes: { fixed: 0, dynamic: 0 },
        requires: [],
        tunables: {},
      },
    },
  ]);
  const [input, output] = [device.allocate('input', words.byteLength), device.allocate('output', words.byteLength)];
  device.write(input, words);
  await device.run([{ kernel: kernel!, grid, bindings: { input: { buffer: input }, output: { buffer: output } } }]);
  const found = new Uint32Array((await device.read(output)).buffer);
  await device.close();

  const floats = new Float32Array(words.buffer);
  // `toHalf` of the reference saturates, where float16 goes to infinity.
  const rounded = (x: number) => (Math.abs(x) >= 65520 ? Math.sign(x) * Number.POSITIVE_INFINITY : toHalf(x));
  const wrong = [...floats].flatMap((x, i) => (found[i] === bitsOf(rounded(x)) ? [] : [x]));
  expect(wrong.length).toBe(0);
  expect(words.length).toBe(31744 * 8);
});
