import { afterEach, expect, test, vi } from 'vitest';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { presetModel, shard } from '../../dsl/index.js';
import { WebGpuDevice } from '../../runtime/webgpu/navigator.js';
import { faultOf } from '../runtime/conformance/bench.js';

/** What a page is told that cannot run kernels. */

afterEach(() => vi.unstubAllGlobals());

test('a browser without WebGPU', async () => {
  vi.stubGlobal('navigator', {});
  vi.stubGlobal('isSecureContext', true);
  expect(await faultOf(() => WebGpuDevice.open())).toBe(
    'missing-capability: webgpu device: expected navigator.gpu, got a browser without WebGPU. Use a browser that has it, or turn it on in its settings.',
  );
});

test('a page over plain http', async () => {
  vi.stubGlobal('navigator', {});
  vi.stubGlobal('isSecureContext', false);
  expect(await faultOf(() => WebGpuDevice.open())).toBe(
    'missing-capability: webgpu device: expected a secure context, got a page without one. Serve the page over https, or from localhost.',
  );
  vi.stubGlobal('crypto', {});
  expect(await faultOf(() => generate(shard, presetModel('smollm2-135m'), defaultTargets.wgsl))).toBe(
    'missing-capability: crypto.subtle: expected a secure context, got a page without one. Serve the page over https, or from localhost.',
  );
});

test('a browser without an adapter', async () => {
  const requestAdapter = vi.fn(async () => null);
  vi.stubGlobal('navigator', { gpu: { requestAdapter } });
  expect(await faultOf(() => WebGpuDevice.open({ powerPreference: 'low-power' }))).toBe(
    'missing-capability: webgpu device: expected an adapter, got none. Turn hardware acceleration on, or update the driver of the GPU.',
  );
  expect(requestAdapter).toHaveBeenCalledWith({ powerPreference: 'low-power' });
});
