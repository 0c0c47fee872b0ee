import { expect, it } from 'vitest';
import { commentLine } from '../../codegen/comment.js';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { presetModel, shard } from '../../dsl/index.js';

it.each([
  ['a\nb', '// a b'],
  ['a\r\n\u0085\u2028\u2029\u0000b', '// a b'],
  ['a\\', '// a'],
  ['a \\ \\\n', '// a'],
  ['C:\\kernels', '// C:\\kernels'],
])('keeps %j on a line of its own', (text, line) => {
  expect(commentLine(text)).toBe(line);
});

it.each(['cuda', 'wgsl'] as const)('lets no model name add a line to %s', async (language) => {
  const model = presetModel('smollm2-135m');
  const named = (name: string) => generate(shard, { ...model, name }, defaultTargets[language]);
  const [plain, hostile] = await Promise.all([named('x fn f() {}'), named('x\nfn f() {}')]);
  expect([...hostile.files]).toEqual([...plain.files]);
});
