import { expect, test } from 'vitest';
import { targetOf } from '../../cli/target.js';

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
