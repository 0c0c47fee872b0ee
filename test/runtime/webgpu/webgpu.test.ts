import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { KernelDescriptor } from '../../../codegen/manifest.js';
import type { KernelText } from '../../../runtime/device.js';
import { requestGpuDevice } from '../../../runtime/webgpu/adapter.js';
import { findAdapter, webGpuAdapters } from '../../../runtime/webgpu/dawn.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';
import { faultOf, words } from '../conformance/bench.js';
import { conformanceKernels } from '../conformance/kernels.js';

const software = { adapter: 'software' } as const;
let device: WebGpuDevice;
const skips: string[] = [];

beforeAll(async () => {
  device = await WebGpuDevice.open({ ...software, poison: true });
});
afterAll(async () => {
  await device?.close();
  console.info(`WebGPU: ${skips.length} tests skipped${skips.map((why) => `\n  ${why}`).join('')}`);
});

/** A kernel `main` over one read_write buffer of u32. */
function kernelOf(source: string, change: Partial<KernelDescriptor> = {}): KernelText {
  const descriptor: KernelDescriptor = {
    stage: 'test',
    entry: 'main',
    file: 'test.wgsl',
    target: 'wgsl',
    bindings: [{ name: 'output', access: 'read_write', element: 'u32', holds: 'words' }],
    threads: 32,
    grid: [1, 1, 1],
    sharedBytes: { fixed: 0, dynamic: 0 },
    requires: [],
    tunables: {},
    ...change,
  };
  return { descriptor, source };
}

const OUTPUT = '@group(0) @binding(0) var<storage, read_write> output: array<u32>;';

async function runOnce(on: WebGpuDevice, text: KernelText, count: number): Promise<number[]> {
  const [kernel] = await on.compile([text]);
  const buffer = on.allocate('output', count * 4);
  await on.run([{ kernel: kernel!, grid: [1, 1, 1], bindings: { output: { buffer } } }]);
  return words(await on.read(buffer));
}

test('the description names the adapter and says that it is software', () => {
  expect(device.description).toMatch(/^(google swiftshader|mesa software): .+ \(software\)$/);
  expect([device.kind, device.target]).toEqual(['webgpu', 'wgsl']);
});

test('the adapters that doctor lists include the open one, with what it offers', async () => {
  const listed = (await webGpuAdapters()).find(({ description }) => description === device.description);
  expect(listed?.software).toBe(true);
  expect(listed?.features).toEqual([...device.features]);
  expect([listed?.sharedBytes, listed?.buffersPerKernel, listed?.bytesPerBinding]).toEqual([
    device.limits.sharedBytes,
    device.limits.buffersPerKernel,
    device.limits.bytesPerBinding,
  ]);
  const [least, greatest] = listed!.subgroupSizes!;
  expect(least).toBeGreaterThanOrEqual(4);
  expect(greatest).toBeGreaterThanOrEqual(least);
});

test('the limits are those of the adapter, above the defaults of WebGPU', () => {
  expect(device.limits.sharedBytes).toBeGreaterThan(16_384);
  expect(device.limits.buffersPerKernel).toBeGreaterThan(8);
  expect(device.limits.bytesPerBinding).toBeGreaterThanOrEqual(2 ** 27);
});

test('poison fills fresh memory with 0xFF, and its absence leaves zeros', async () => {
  expect(words(await device.read(device.allocate('fresh', 8)))).toEqual([0xffffffff, 0xffffffff]);
  const plain = await WebGpuDevice.open(software);
  expect(words(await plain.read(plain.allocate('fresh', 8)))).toEqual([0, 0]);
  await plain.close();
});

test('a buffer larger than the device allows is refused', async () => {
  expect(await faultOf(() => device.allocate('huge', 2 ** 40))).toMatch(
    /^does-not-fit: buffer 'huge': expected at most \d+ bytes \(the largest buffer of this device\), got 1099511627776\. Split the data over several buffers\.$/,
  );
});

test('an adapter of a kind or with features that are not there is a missing capability', async () => {
  expect(await faultOf(() => WebGpuDevice.open({ ...software, features: ['teleport'] }))).toBe(
    `missing-capability: webgpu device: expected an adapter with teleport, got ${device.description}. Open another adapter, or ask for features: 'all' to take what there is.`,
  );
});

test('a hardware adapter is never replaced by a software one', async (context) => {
  if ((await webGpuAdapters()).some((adapter) => !adapter.software)) {
    skips.push('no hardware adapter: this machine has one');
    context.skip(skips.at(-1)!);
  }
  const found = (await webGpuAdapters()).map(({ description }) => description).join(', ');
  const named = process.env.VK_DRIVER_FILES;
  const rest =
    named === undefined
      ? `${found}. Install the driver of the GPU and its Vulkan part, or open the software adapter.`
      : `${found} among the drivers of VK_DRIVER_FILES (${named}). Correct VK_DRIVER_FILES, or unset it.`;
  expect(await faultOf(() => WebGpuDevice.open({ adapter: 'hardware' }))).toBe(
    `missing-capability: webgpu device: expected a hardware adapter, got ${rest}`,
  );
});

test('a device opened without features refuses kernels that require them', async () => {
  const bare = await WebGpuDevice.open({ ...software, features: [] });
  const text = kernelOf(`enable subgroups;\n${OUTPUT}`, { requires: ['subgroups'] });
  expect([...bare.features]).toEqual([]);
  expect(await faultOf(() => bare.compile([text]))).toBe(
    'missing-capability: test.wgsl: main: expected a device with subgroups, got one with no optional feature. Generate the kernel without it, or open a device that has it.',
  );
  await bare.close();
});

test('an error in the text names file, line and column', async () => {
  const source = `${OUTPUT}\n@compute @workgroup_size(32)\nfn main() {\n  let x: i32 = 1.5;\n}\n`;
  expect(await faultOf(() => device.compile([kernelOf(source)]))).toBe(
    "compile-failed: test.wgsl:4:16: expected WGSL that compiles, got cannot convert value of type 'abstract-float' to type 'i32'. Correct what printed this line: let x: i32 = 1.5;",
  );
  expect(await faultOf(() => device.compile([kernelOf('fn main( {')]))).toBe(
    "compile-failed: test.wgsl:1:10: expected WGSL that compiles, got expected ')' for function declaration. Correct what printed this line: fn main( {",
  );
});

test('a text that does not match its manifest is refused', async () => {
  const body = '@compute @workgroup_size(32) fn main() { output[0] = 1u; }';
  const told = (fault: string) =>
    `compile-failed: test.wgsl: ${fault}. Generate the kernel and its manifest together again.`;
  const source = `${OUTPUT}\n${body}`;
  expect(await faultOf(() => device.compile([kernelOf(source, { entry: 'other' })]))).toBe(
    told(
      `other: expected an entry point that matches its manifest, got Entry point ""other"" doesn't exist in the shader module [ShaderModule "test.wgsl"]`,
    ),
  );
  const bindings = [{ name: 'output', access: 'read', element: 'u32', holds: 'words' }] as const;
  expect(await faultOf(() => device.compile([kernelOf(source, { bindings })]))).toBe(
    told(
      'main: expected an entry point that matches its manifest, got The buffer type in the shader (BufferBindingType::Storage) is not compatible with the type in the layout (BufferBindingType::ReadOnlyStorage)',
    ),
  );
});

test('the first bad kernel of a list is the one told, and the device stays usable', async () => {
  const good = kernelOf(`${OUTPUT}\n@compute @workgroup_size(1) fn main() { output[0] = 7u; }`);
  const bad = kernelOf('nonsense', { file: 'bad.wgsl' });
  const worse = kernelOf('rubbish', { file: 'worse.wgsl' });
  expect(await faultOf(() => device.compile([good, bad, worse]))).toBe(
    'compile-failed: bad.wgsl:1:1: expected WGSL that compiles, got unexpected token. Correct what printed this line: nonsense',
  );
  expect(await runOnce(device, good, 1)).toEqual([7]);
});

test('a block may use all the workgroup memory of the limits, which starts as zeros and compiles fast', async () => {
  const count = device.limits.sharedBytes / 4;
  const source = `${OUTPUT}
var<workgroup> memory: array<u32, ${count}>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) i: u32) {
  var sum = 0u;
  for (var k = i; k < ${count}u; k += 32u) { sum += memory[k]; }
  workgroupBarrier();
  for (var k = i; k < ${count}u; k += 32u) { memory[k] = k; }
  workgroupBarrier();
  output[i] = sum + memory[${count - 1}u - i];
}`;
  const text = kernelOf(source, { sharedBytes: { fixed: count * 4, dynamic: 0 } });
  const start = performance.now();
  expect(await runOnce(device, text, 32)).toEqual(Array.from({ length: 32 }, (_, i) => count - 1 - i));
  // SwiftShader needs a hundred times as long where Dawn leaves the clearing to it.
  expect(performance.now() - start).toBeLessThan(5000);
});

test('a kernel with subgroup operations runs', async () => {
  const source = `enable subgroups;\n${OUTPUT}
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
  output[i] = subgroupAdd(1u) - size;
}`;
  const sums = await runOnce(device, kernelOf(source, { requires: ['subgroups'] }), 32);
  expect(sums).toEqual(Array(32).fill(0));
});

test('a kernel with f16 arithmetic runs', async (context) => {
  if (!device.features.has('shader-f16')) {
    skips.push(`f16: ${device.description} has no shader-f16`);
    context.skip(skips.at(-1)!);
  }
  const source = `enable f16;\n${OUTPUT}
@compute @workgroup_size(1) fn main() { output[0] = bitcast<u32>(vec2<f16>(1.5h, -2.0h)); }`;
  expect(await runOnce(device, kernelOf(source, { requires: ['shader-f16'] }), 1)).toEqual([0xc0003e00]);
});

test('once the GPU is lost every call says so', async () => {
  const adapter = await findAdapter('software');
  const raw = await requestGpuDevice(adapter);
  const lost = WebGpuDevice.fromGpuDevice(adapter, raw);
  const text = conformanceKernels('wgsl').affine;
  const [kernel] = await lost.compile([text]);
  const buffer = lost.allocate('memory', 16);
  raw.destroy();
  const told =
    'device-lost: webgpu device: expected a live device, got a lost one (device was destroyed). Start a new process: a lost device cannot be revived.';
  // Told even to a call made before the loss was announced.
  expect(await faultOf(() => lost.read(buffer))).toBe(told);
  await raw.lost;
  expect(await faultOf(() => lost.read(buffer))).toBe(told);
  expect(await faultOf(() => lost.allocate('memory', 16))).toBe(told);
  expect(await faultOf(() => lost.write(buffer, new Uint32Array(1)))).toBe(told);
  expect(await faultOf(() => lost.compile([text]))).toBe(told);
  expect(await faultOf(() => lost.run([{ kernel: kernel!, grid: [1, 1, 1], bindings: {} }]))).toBe(told);
  await lost.close();
});

test('a run cut off by a loss does not look done', async () => {
  const adapter = await findAdapter('software');
  const raw = await requestGpuDevice(adapter);
  const lost = WebGpuDevice.fromGpuDevice(adapter, raw);
  raw.destroy();
  expect(await faultOf(() => lost.run([]))).toBe(
    'device-lost: webgpu device: expected a live device, got a lost one (device was destroyed). Start a new process: a lost device cannot be revived.',
  );
  expect(await faultOf(() => lost.compile([conformanceKernels('wgsl').affine]))).toMatch(/^device-lost: /);
});

test('what a browser loads imports no Node module: all of that lies behind the import of dawn.js', async () => {
  const seen = new Set<string>();
  const visit = async (url: URL): Promise<void> => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    const text = await readFile(fileURLToPath(url).replace(/\.js$/, '.ts'), 'utf8');
    for (const [, name] of text.matchAll(/^(?:import|export) (?!type )[^;]*?from '([^']+)';/gm)) {
      expect(name).toMatch(/^\.{1,2}\//);
      await visit(new URL(name!, url));
    }
  };
  await visit(new URL('../../../runtime/webgpu/webgpu.js', import.meta.url));
  const files = [...seen].map((href) => href.split('/').at(-1)).sort();
  const modules = 'adapter checkInput checks compile errors gpuDevice recorded stopwatch webgpu';
  expect(files).toEqual(modules.split(' ').map((name) => `${name}.js`));
});
