import { describe, expect, test } from 'vitest';
import { readBuiltins } from '../../../codegen/builtins.js';
import { printCuda } from '../../../codegen/emit/cuda.js';
import { printWgsl } from '../../../codegen/emit/wgsl.js';
import { specialize } from '../../../codegen/specialize.js';
import { float8 } from '../../../dsl/index.js';
import type { Device } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';

const formats = ['e4m3', 'e5m2'] as const;
type Format = (typeof formats)[number];

const threads = 64;

/** Every level, the floats at and beside the middle between neighbours, and what saturates, of both signs; whole groups. */
function inputs(format: Format): Float32Array {
  const levels = float8({ format }).levels(128).slice(0, 127);
  const near = (x: number) => [x * (1 - 2 ** -23), x, x * (1 + 2 ** -23)];
  const sizes = levels.flatMap((level, i) => [level, ...near((level + (levels[i + 1] ?? level)) / 2)]);
  const all = [...sizes, 1e30].flatMap((x) => [x, -x]);
  return Float32Array.from({ length: Math.ceil(all.length / threads) * threads }, (_, i) => all[i] ?? 0);
}

/** A kernel that writes the code of every input, then what every code stands for. */
function sourceFor(format: Format, target: Device['target'], functions: ReturnType<typeof specialize>): string {
  if (target === 'wgsl') {
    return `${printWgsl(functions)}
@group(0) @binding(0) var<storage, read> input: array<f32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(${threads}) fn convert(@builtin(global_invocation_id) id: vec3u) {
  let code = ${format}_code_8(input[id.x]);
  output[2u * id.x] = code;
  output[2u * id.x + 1u] = bitcast<u32>(${format}_value(code));
}`;
  }
  return `#include "prelude.cuh"
${printCuda(functions)}
extern "C" __global__ void convert(const float *__restrict__ input, u32 *__restrict__ output) {
  const u32 i = blockIdx.x * ${threads}u + threadIdx.x;
  const auto no_levels = [](u32) { return 0.0f; };
  const u32 code = ${format}_code_8(input[i], no_levels);
  output[2u * i] = code;
  output[2u * i + 1u] = __float_as_uint(${format}_value(code, no_levels));
}
`;
}

describe.each([
  ['webgpu', () => WebGpuDevice.open({ adapter: 'software' })],
  ['emulator', () => EmulatorDevice.open()],
] as const)('float8 on %s', (_, open) => {
  test.each(formats)('codes and reads %s as Node does, at every midpoint', async (format) => {
    const library = new Map((await readBuiltins()).map((ir) => [ir.name, ir]));
    const roots = [
      { name: `${format}Code`, statics: { bits: 8 } },
      { name: `${format}Value`, statics: {} },
    ];
    const numbers = inputs(format);
    const device: Device = await open();
    const grid = [numbers.length / threads, 1, 1] as const;
    const [kernel] = await device.compile([
      {
        source: sourceFor(format, device.target, specialize(roots, library)),
        descriptor: {
          stage: 'test',
          entry: 'convert',
          file: `convert.${device.target === 'wgsl' ? 'wgsl' : 'cu'}`,
          target: device.target,
          bindings: [
            { name: 'input', access: 'read', element: 'f32', holds: '[numbers]' },
            { name: 'output', access: 'read_write', element: 'u32', holds: '[numbers][code, value]' },
          ],
          threads,
          grid,
          sharedBytes: { fixed: 0, dynamic: 0 },
          requires: [],
          tunables: {},
        },
      },
    ]);
    const input = device.allocate('input', numbers.byteLength);
    const output = device.allocate('output', numbers.byteLength * 2);
    device.write(input, new Uint32Array(numbers.buffer));
    await device.run([{ kernel: kernel!, grid, bindings: { input: { buffer: input }, output: { buffer: output } } }]);
    const bytes = (await device.read(output)).slice().buffer;
    await device.close();

    const [codes, values] = [new Uint32Array(bytes), new Float32Array(bytes)];
    const { code, value } = float8({ format }).device;
    const none = () => Number.NaN;
    const wrong = [...numbers].filter((x, i) => {
      const wanted = code(x, none, 8);
      return codes[2 * i] !== wanted || values[2 * i + 1] !== value(wanted, none);
    });
    expect(wrong).toEqual([]);
    expect(new Set(codes.filter((_code, i) => i % 2 === 0)).size).toBe(format === 'e4m3' ? 254 : 248);
  });
});
