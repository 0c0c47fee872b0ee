import { beforeAll, expect, test } from 'vitest';
import type { GeneratedKernels } from '../../codegen/generate.js';
import { type Mutant, plant } from './mutant.js';
import { generateSmall } from './support.js';

let generated: GeneratedKernels;
beforeAll(async () => {
  generated = await generateSmall({ language: 'cuda', arch: 'sm_80', tensorCores: false });
});

const fault = (text: string): Mutant => ({ name: 'a fault', text, instead: "$& and $'", by: 'reference' });

test('a fault is planted where its text stands once, letter by letter, and nowhere else', () => {
  const planted = plant(generated, 'gram_keys', fault('slice[row * WIDTH + column] = total[r][c];'));
  const [before, after] = [generated, planted].map(({ files }) => files.get('gram_keys.cu')!);
  expect(after).toBe(before!.split('slice[row * WIDTH + column] = total[r][c];').join("$& and $'"));
  for (const [name, text] of generated.files) if (name !== 'gram_keys.cu') expect(planted.files.get(name)).toBe(text);
});

test('a text that a kernel no longer holds, or holds twice, is an error and not a fault that nobody sees', () => {
  expect(() => plant(generated, 'gram_keys', fault('gone'))).toThrow(
    'gram_keys.cu no longer holds what the fault "a fault" replaces: "gone"',
  );
  expect(() => plant(generated, 'gram_keys', fault('__syncthreads();'))).toThrow(
    'gram_keys.cu holds 2 times what the fault "a fault" replaces: "__syncthreads();"',
  );
});
