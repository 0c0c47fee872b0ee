import { beforeAll, expect, test } from 'vitest';
import { resolveScheme } from '../../cli/resolve.js';
import { generate } from '../../codegen/generate.js';
import { presetModel } from '../../dsl/model.js';
import { isLatent } from '../../dsl/scheme.js';
import { schemeNames } from '../../dsl/schemes/presets.js';
import { findAdapter } from '../../runtime/webgpu/dawn.js';

const small = presetModel('smollm2-135m');
const schemes = await Promise.all(schemeNames.map((name) => resolveScheme(name, small)));
let gpu: GPUDevice;
beforeAll(async () => {
  const adapter = await findAdapter('any');
  expect(adapter.features.has('subgroups')).toBe(true);
  gpu = await adapter.requestDevice({ requiredFeatures: ['subgroups'] });
});

// Entry points have parameters of their own there, which a template's names must not meet.
test.each(schemes)('every kernel of $name is WGSL where there are subgroups', async (scheme) => {
  const model = isLatent(scheme) ? presetModel('deepseek-v2-lite') : small;
  const target = { language: 'wgsl', f16: false, subgroups: true, workgroupBytes: 32768 } as const;
  const { manifest, files } = await generate(scheme, model, target);
  for (const { file } of manifest.kernels) {
    gpu.pushErrorScope('validation');
    gpu.createShaderModule({ code: files.get(file)! });
    expect(await gpu.popErrorScope(), file).toBeNull();
  }
});
