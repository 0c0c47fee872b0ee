import { expect, test } from 'vitest';
import { targetOf } from '../../cli/target.js';
import { targetFor } from '../../runtime/targetFor.js';

test('--subgroup-matrices asks for the room that GPUs with them have', () => {
  expect(targetOf('wgsl', { f16: true, subgroups: true, subgroupMatrices: true, set: [] })).toEqual({
    language: 'wgsl',
    f16: true,
    subgroups: true,
    subgroupMatrices: true,
    workgroupBytes: 49152,
  });
});

test.each([
  [{ subgroupMatrices: true }, '--subgroup-matrices needs --f16 and --subgroups'],
  [{ f16: true, subgroupMatrices: true }, '--subgroup-matrices needs --f16 and --subgroups'],
] as const)('%j is refused', (options, message) => {
  expect(() => targetOf('wgsl', { ...options, set: [] })).toThrow(message);
});

test('CUDA has no subgroup matrices', () => {
  expect(() => targetOf('cuda', { subgroupMatrices: true, set: [] })).toThrow(
    '--subgroup-matrices does not apply to cuda kernels',
  );
});

test.each([
  [['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'], true],
  [['shader-f16', 'subgroups'], undefined],
  [['subgroups', 'chromium-experimental-subgroup-matrix'], undefined],
] as const)('a WebGPU device with %j has them: %j', (features, subgroupMatrices) => {
  const limits = { sharedBytes: 49152 };
  const target = targetFor({ target: 'wgsl', features: new Set<string>(features), identity: {}, limits });
  expect(target).toEqual({
    language: 'wgsl',
    f16: (features as readonly string[]).includes('shader-f16'),
    subgroups: true,
    workgroupBytes: 49152,
    ...(subgroupMatrices && { subgroupMatrices }),
  });
});
