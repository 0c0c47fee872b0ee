import { expect, test } from 'vitest';
import { geometryConstants, scheduleConstant } from '../../codegen/constants.js';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { geometryOf, type ModelShape, presetModel, shard } from '../../dsl/index.js';

const smol = presetModel('smollm2-135m');
/** Numbers that are 1 as float32: scale over cap, cap * log2(e), and without a cap scale * log2(e). */
const capped: ModelShape = { ...smol, scoreScale: Math.LN2, scoreCap: Math.LN2 };
const uncapped: ModelShape = { ...smol, scoreScale: Math.LN2 };

test.each([
  ['wgsl', 'attend.wgsl', 'const SCORE_SCALE = 1.0;', 'const SCORE_CAP = 1.0;', 'const HEAD_DIM = 64u;'],
  [
    'cuda',
    'attend.cu',
    'constexpr float SCORE_SCALE = 1.0f;',
    'constexpr float SCORE_CAP = 1.0f;',
    'constexpr u32 HEAD_DIM = 64;',
  ],
] as const)('%s: a float that is whole is printed as a float', async (language, file, scale, cap, count) => {
  const text = (await generate(shard, capped, defaultTargets[language])).files.get(file);
  for (const declared of [scale, cap, count]) expect(text).toContain(`${declared}  //`);
  expect((await generate(shard, uncapped, defaultTargets[language])).files.get(file)).toContain(`${scale}  //`);
});

test('the type of a constant is that of its name', () => {
  expect(scheduleConstant('SCORE_SCALE', 1)).toMatchObject({ type: 'f32', value: 1 });
  expect(scheduleConstant('THREADS', 32)).toMatchObject({ type: 'u32', value: 32 });
  const blockOf = (hadamardBlock: number) =>
    geometryConstants({ ...geometryOf(shard, smol), hadamardBlock }).find(({ name }) => name === 'HADAMARD_SCALE');
  expect(blockOf(1)).toMatchObject({ type: 'f32', value: 1 });
  expect(blockOf(16)).toMatchObject({ type: 'f32', value: 0.25 });
});

test.each([
  ['SCORE_SCALE', Number.NaN, 'normal float32'],
  ['SCORE_SCALE', Number.POSITIVE_INFINITY, 'normal float32'],
  ['SCORE_CAP', 1e39, 'normal float32'],
  ['SCORE_CAP', 0, 'normal float32'],
  ['SCORE_CAP', 1e-40, 'normal float32'],
  ['THREADS', 1.5, 'u32'],
  ['THREADS', -1, 'u32'],
  ['THREADS', 2 ** 32, 'u32'],
] as const)('%s = %d is refused', (name, value, type) => {
  expect(() => scheduleConstant(name, value)).toThrow(`${name} = ${value} is no ${type}`);
});
