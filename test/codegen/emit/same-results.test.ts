import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cudaVectorHelpers, printCuda } from '../../../codegen/emit/cuda.js';
import { printWgsl } from '../../../codegen/emit/wgsl.js';
import { requestGpuDevice } from '../../../runtime/webgpu/adapter.js';
import { findAdapter } from '../../../runtime/webgpu/dawn.js';
import { type Arguments, differences, given, lowerPrograms, type Programs } from './programs.js';

const prelude = `
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#define __device__
#define __forceinline__ inline
typedef uint32_t u32;
using std::min; using std::max;
struct float2 { float x, y; }; struct float3 { float x, y, z; }; struct float4 { float x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static u32 __float_as_uint(float x) { u32 bits; memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
static int __popc(u32 x) { return __builtin_popcount(x); }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
`;

const folder = mkdtempSync(join(tmpdir(), 'kvforge-emit-'));
let programs: Programs;

beforeAll(async () => {
  programs = await lowerPrograms();
}, 120_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

function compileForHost({ functions, roots }: Programs): string {
  const cases = roots.map(({ emittedName, returns }, i) => {
    const value = returns === 'f32' ? '__float_as_uint(result)' : 'u32(result)';
    return `case ${i}: { auto result = ${emittedName}(a, b, m, n, j, k); printf("%u\\n", ${value}); break; }`;
  });
  const main = `int main() {
  int j, k; float a, b; u32 m, n;
  while (scanf("%f %f %u %u %d %d", &a, &b, &m, &n, &j, &k) == 6)
    for (int f = 0; f < ${roots.length}; f++) switch (f) {\n${cases.join('\n')}\n}
}`;
  const [text, program] = [join(folder, 'all.cc'), join(folder, 'all')];
  writeFileSync(text, `${prelude}${cudaVectorHelpers}${printCuda(functions)}${main}`);
  const flags = ['-O1', '-std=c++17', '-fwrapv', '-ffp-contract=off', '-Wparentheses', '-Werror=parentheses'];
  execFileSync('g++', [...flags, '-o', program, text], { stdio: 'inherit' });
  return program;
}

it('gives the same results in Node and as CUDA compiled for the host', () => {
  const program = compileForHost(programs);
  fc.assert(
    fc.property(fc.array(given, { minLength: 4, maxLength: 12 }), (rows) => {
      const input = rows.map((row) => row.join(' ')).join('\n');
      const found = execFileSync(program, { input, encoding: 'utf8' }).trim().split('\n').map(Number);
      expect(differences(programs, rows, programs.inNode(rows), found)).toEqual([]);
    }),
    { numRuns: 25 },
  );
});

const ROWS = 64;

async function runAsWgsl({ functions, roots }: Programs, rows: readonly Arguments[]): Promise<number[]> {
  const device = await requestGpuDevice(await findAdapter('software'), []);
  const calls = roots.map(({ emittedName, returns }, i) => {
    const call = `${emittedName}(a, b, m, n, j, k)`;
    return `  results[row * ${roots.length}u + ${i}u] = ${returns === 'f32' ? `bitcast<u32>(${call})` : `u32(${call})`};`;
  });
  const code = `${printWgsl(functions)}
@group(0) @binding(0) var<storage, read> inputs: array<i32>;
@group(0) @binding(1) var<storage, read_write> results: array<u32>;
@compute @workgroup_size(${ROWS}) fn main(@builtin(local_invocation_index) row: u32) {
  let a = f32(inputs[row * 6u]);
  let b = f32(inputs[row * 6u + 1u]);
  let m = u32(inputs[row * 6u + 2u]);
  let n = u32(inputs[row * 6u + 3u]);
  let j = inputs[row * 6u + 4u];
  let k = inputs[row * 6u + 5u];
${calls.join('\n')}
}`;
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
  const bytes = ROWS * roots.length * 4;
  const inputs = device.createBuffer({ size: ROWS * 24, usage: 0x80 | 0x8 });
  const results = device.createBuffer({ size: bytes, usage: 0x80 | 0x4 });
  const readable = device.createBuffer({ size: bytes, usage: 0x1 | 0x8 });
  device.queue.writeBuffer(inputs, 0, Int32Array.from(rows.flat()));
  const entries = [inputs, results].map((buffer, binding) => ({ binding, resource: { buffer } }));
  const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  pass.dispatchWorkgroups(1);
  pass.end();
  encoder.copyBufferToBuffer(results, 0, readable, 0, bytes);
  device.queue.submit([encoder.finish()]);
  expect((await device.popErrorScope())?.message).toBeUndefined();
  await readable.mapAsync(1);
  const found = [...new Uint32Array(readable.getMappedRange())];
  device.destroy();
  return found;
}

const software = await findAdapter('software').then(
  () => true,
  () => false,
);

it.runIf(software)('gives the same results in Node and as WGSL on a software adapter', async () => {
  const rows = fc.sample(given, { numRuns: ROWS });
  const found = await runAsWgsl(programs, rows);
  expect(differences(programs, rows, programs.inNode(rows), found)).toEqual([]);
});
