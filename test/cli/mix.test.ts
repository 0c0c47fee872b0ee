import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { recordBytes } from '../../codegen/plan/layout.js';
import { config, recording, tokens } from '../runtime/mix/recording.js';
import { cli, documentOf, errorOf, type Run, spawned, temporaryFolder } from './support.js';

interface MixDocument {
  readonly budget: number;
  readonly bytesPerToken: number;
  readonly error: number;
  readonly predicted: number;
  readonly window: number;
  readonly grid: { readonly unit: number; readonly exact: boolean };
  readonly layers: readonly { layer: number; keys: string; values: string; bytes: number; error: number }[];
  readonly front: readonly { readonly budget: number; readonly mix: { readonly error: number } | null }[];
  readonly uniform: readonly { readonly scheme: string }[];
}

let folder = '';
beforeEach(() => {
  folder = temporaryFolder();
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  writeFileSync(join(folder, 'recorded.safetensors'), recording());
  writeFileSync(
    join(folder, 'short.ts'),
    [
      "import { defineScheme, hadamard, int8, kivi2, lloydMax, perToken } from 'kvforge';",
      'const coded = perToken(lloydMax({ bits: 2 }));',
      "export const own = defineScheme({ name: 'own', keys: [hadamard(), coded], values: [coded], sinks: 2, window: 8, stream: lloydMax({ bits: 2 }) });",
      "export const fine = defineScheme({ ...int8, name: 'fine', window: 8 });",
      "export const same = defineScheme({ ...int8, name: 'own' });",
    ].join('\n'),
  );
});

const at = (name: string) => join(folder, name);
const options = () => ['mix', '--model', at('config.json'), '--activations', at('recorded.safetensors')];
const mixed = (...args: readonly string[]): Promise<Run> => cli(...options(), ...args);
/** A process of its own, as files of schemes are loaded by one. */
const mixedApart = (...args: readonly string[]): Promise<Run> => spawned([...options(), ...args]);

describe('kvforge mix', () => {
  test('prints a row for every layer, and the front', async () => {
    const schemes = `${at('short.ts')}#fine,${at('short.ts')}#own`;
    const run = await mixedApart('--bytes-per-token', '60', '--schemes', schemes, '--front', '10,200');
    expect(run.code).toBe(0);
    const lines = run.out.split('\n');
    expect(lines[0]).toBe('layer  keys  values  bytes a token  keys alone  values alone  predicted  together');
    expect(lines.slice(1, 4).map((line) => line.trim().split(/\s+/)[0])).toEqual(['0', '1', '2']);
    expect(lines[4]).toMatch(/^ {2}all +\d+\.\d +\d+\.\d\d% +\d+\.\d\d%$/);
    expect(lines[6]).toBe('budget  bytes a token  predicted  together  that of  by itself');
    const front = lines.slice(7, 12).map((line) => line.trim().split(/\s{2,}/));
    expect(front[0]).toEqual(['10.0', 'too few']);
    expect(front[2]![0]).toBe('60.0');
    // With the most bytes of all the mix is the larger scheme by itself.
    expect(front[3]!.slice(2)).toEqual([front[4]![2], front[4]![3], 'fine', front[4]![3]]);
    expect(run.out).toContain('4 sinks and a window of 8 tokens are exact in every layer. Searched in steps of ');
  });

  test('writes a file of schemes, each as large as it says', async () => {
    const schemes = `int8,${at('short.ts')}#own,turboquant3`;
    const out = at('mixed.ts');
    const run = await mixedApart('--bytes-per-token', '100', '--schemes', schemes, '--out', out, '--json');
    expect(run.code).toBe(0);
    const { layers, bytesPerToken, budget, window } = documentOf(run) as unknown as MixDocument;
    expect(layers.map(({ layer }) => layer)).toEqual([0, 1, 2]);
    expect(bytesPerToken).toBeLessThanOrEqual(budget);
    expect(window).toBe(64);
    expect(layers.some(({ keys, values }) => keys === 'own' || values === 'own')).toBe(true);
    for (const { layer, bytes } of layers) {
      const plan = await spawned([
        'inspect',
        `${out}#layer${layer}`,
        '--model',
        at('config.json'),
        '--tokens',
        `${tokens}`,
        '--json',
      ]);
      expect(plan.err).toBe('');
      expect(documentOf(plan).totalBytes).toBe(bytes);
      expect(bytes).toBeGreaterThan(recordBytes);
    }
    const text = readFileSync(out, 'utf8');
    expect(text.split('\n')[1]).toMatch(
      /^\/\/ Attention error \d\.\d{4}, predicted \d\.\d{4}: measured on drawn numbers\.$/,
    );
    expect(text).toContain("import { own as own2 } from './short.ts';\n");
    expect(text).toContain('  { layer: 2, scheme: layer2 },\n];\n');
  });

  test('writes the document that --json prints', async () => {
    const args = ['--bytes-per-token', '97', '--schemes', 'int8,int2-hadamard', '--front', '110', '--json'];
    const run = await mixed(...args, '--out', at('mixed.json'));
    expect(run.code).toBe(0);
    expect(readFileSync(at('mixed.json'), 'utf8')).toBe(run.out);
    const { front, uniform, error, grid } = documentOf(run) as unknown as MixDocument;
    expect(front.map(({ budget }) => budget)).toEqual([110]);
    expect(front[0]!.mix!.error).toBeLessThan(error);
    expect(uniform.map(({ scheme }) => scheme)).toEqual(['int8', 'int2-hadamard']);
    // Layouts are whole 256s.
    expect(grid.unit % 256).toBe(0);
    expect(grid.exact).toBe(true);
    // The same numbers give the same document.
    expect((await mixed(...args)).out).toBe(run.out);
  });

  const hint = {
    lowRank: 'Put it beside a mix with kvforge compare.',
    digits: 'Write it in decimal digits.',
    names: 'Names are matched exactly.',
  };
  test.each<[string, readonly string[], string, string]>([
    [
      'a low-rank scheme',
      ['--schemes', 'int8,shard'],
      '--schemes: expected schemes that code every channel by itself, got shard, whose keys are low-rank',
      hint.lowRank,
    ],
    [
      'a scheme that does not fit the model',
      ['--schemes', 'int8,nf4'],
      "nf4: keys[0].block.channels: expected a number that divides the head dimension 16, or 'head', got 64",
      'Scales do not cross heads.',
    ],
    [
      'two schemes of one name',
      ['--schemes', 'short.ts#own,short.ts#same'],
      '--schemes: expected schemes of different names, got two that are called own',
      'Give one of them another name.',
    ],
    [
      'a file without the name of its export, where it is to be imported',
      ['--schemes', 'int8,single.ts', '--out', 'mixed.ts'],
      '--schemes: expected files as file.ts#name, where --out is a .ts file that imports them, got single.ts',
      'Write #default for the default export.',
    ],
    [
      'too few bytes',
      ['--schemes', 'int8', '--bytes-per-token', '40'],
      // 68 exact tokens of 128 bytes, 42 of 72, to whole 256s, and a record: 12032 bytes for 110 tokens.
      '--bytes-per-token: expected at least 110, what the smallest of the schemes take, got 40',
      'Raise it, or add a smaller scheme to --schemes.',
    ],
    [
      'bytes that are no number',
      ['--bytes-per-token', 'few'],
      '--bytes-per-token: expected a whole number from 1 to 16777216, got "few"',
      hint.digits,
    ],
    [
      'a front that is no list of numbers',
      ['--front', '100,x'],
      '--front: expected a whole number from 1 to 16777216, got "x"',
      hint.digits,
    ],
    [
      'a file of another kind',
      ['--out', 'mixed.yaml'],
      '--out, its ending: expected one of .ts, .json, got ".yaml"',
      hint.names,
    ],
  ])('refuses %s', async (_, args, message, wanted) => {
    writeFileSync(at('single.ts'), "import { int8 } from 'kvforge';\nexport default { ...int8, name: 'single' };\n");
    const given = args.map((arg) => arg.replace(/(short|single|mixed)\./g, (name) => at(name)));
    const budget = args.includes('--bytes-per-token') ? [] : ['--bytes-per-token', '100'];
    const apart = args.some((arg) => /(short|single)\./.test(arg));
    const run = await (apart ? mixedApart : mixed)(...budget, ...given, '--json');
    expect(run.code).toBe(2);
    const error = errorOf(run);
    expect({ ...error, message: error.message.replaceAll(`${folder}/`, '') }).toEqual({
      code: error.code,
      message,
      hint: wanted,
    });
    expect(error.code).toBe(message.startsWith('nf4') ? 'invalid-scheme' : 'wrong-use');
  });

  test('has no activations of its own for another model', async () => {
    const run = await cli('mix', '--model', at('config.json'), '--bytes-per-token', '100', '--json');
    expect(errorOf(run).message).toMatch(/^--activations: expected a file of activations recorded from .+, got none$/);
  });

  test('takes the activations that come with kvforge where they are of the model', async () => {
    const bundled = packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors');
    const args = ['mix', '--model', 'smollm2-135m', '--bytes-per-token', '1', '--schemes', 'int8', '--json'];
    const [own, given] = [await cli(...args), await cli(...args, '--activations', bundled)];
    expect(own.out).toBe(given.out);
    expect(errorOf(own).message).toBe(
      '--bytes-per-token: expected at least 413, what the smallest of the schemes take, got 1',
    );
  }, 120_000);
});
