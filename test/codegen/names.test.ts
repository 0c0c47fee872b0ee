import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { defaultTargets, generate } from '../../codegen/generate.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { emittedName } from '../../codegen/specialize.js';
import { loadTemplates, namesIn } from '../../codegen/templates.js';
import { defineScheme, type f32, type Lookup, lloydMax, presetModel, shard, type u32 } from '../../dsl/index.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { deviceNames, openDevice } from '../stages/harness.js';

const folder = mkdtempSync(join(tmpdir(), 'kvforge-names-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** A scheme whose three device functions have these names. */
function schemeOf(scale: string, code: string, value: string) {
  const text = `import { type f32, type Lookup, type Static, type u32 } from 'kvforge';
function ${scale}(sumOfSquares: f32, maxAbs: f32): f32 { 'device'; return sumOfSquares + maxAbs; }
function ${code}(x: f32, levels: Lookup<f32>, bits: Static<u32>): u32 { 'device'; return x > levels(0) ? bits : 0; }
function ${value}(code: u32, levels: Lookup<f32>): f32 { 'device'; return levels(code); }
`;
  const file = join(folder, `${scale}-${code}-${value}.ts`);
  writeFileSync(file, text);
  const named = <T>(name: string, fn: T): T => Object.defineProperty(fn as object, 'name', { value: name }) as T;
  const stream = {
    ...lloydMax({ bits: 8 }),
    device: {
      scale: named(scale, (_: f32, maxAbs: f32) => maxAbs),
      code: named(code, (_: f32) => 0),
      value: named(value, (index: u32, levels: Lookup<f32>) => levels(index)),
    },
    source: pathToFileURL(file).href,
  };
  return defineScheme({ ...shard, name: 'named', stream });
}

const smol = presetModel('smollm2-135m');

/** Functions, variables, constants, parameters and types that a text declares. */
function declaredIn(text: string): string[] {
  const bare = text.replace(/\/\/.*/g, '').replace(/\w*\{\{\{?[\s\S]*?\}\}\}?\w*/g, ' ');
  const forms = [
    /\b(?:fn|let|var|const|struct)\s+([A-Za-z_]\w*)/g,
    /\bvar<[^>]*>\s+([A-Za-z_]\w*)/g,
    /\b([A-Za-z_]\w*)\s*:\s*(?:u32|i32|f32|vec\w+|array|ptr)/g,
    /\b(?:u8|u16|u32|i32|u64|int|float\d?|uint\d?|half|bool|void|char|Segments)(?:\s*[*&]\s*|\s+)(?:const\s+)?(?:__restrict__\s+)?\(?&?([A-Za-z_]\w*)\s*[[=(),;]/g,
  ];
  return forms.flatMap((form) => [...bare.matchAll(form)].map(([, name]) => name!));
}

describe.each(['cuda', 'wgsl'] as const)('the templates of %s', (language) => {
  it('declare no name that a device function can be given', async () => {
    const { names } = await loadTemplates(language);
    const files = readdirSync(packagePath('templates', language), { recursive: true, encoding: 'utf8' });
    const declared = files
      .filter((name) => /\.(hbs|cuh)$/.test(name))
      .flatMap((name) => declaredIn(readFileSync(packagePath('templates', language, name), 'utf8')));
    expect(declared.length).toBeGreaterThan(200);
    expect(declared.filter((name) => !names.has(name))).toEqual([]);
  });
});

it('leaves comments and handlebars out of the names', () => {
  const text = '// a level\nfn level_at(i: u32) -> f32 { /* of it */ return {{fn.value}}(first_{{bits}}_at[i]); }';
  expect([...namesIn([text])]).toEqual(['fn', 'level_at', 'i', 'u32', 'f32', 'return']);
});

it('renames functions that CUDA declares itself', () => {
  expect(['norm', 'erf', 'powf', 'hypot', 'isnan'].map((name) => emittedName(name, []))).toEqual([
    'norm_',
    'erf_',
    'powf_',
    'hypot_',
    'isnan_',
  ]);
});

const collisions: readonly (readonly [string, string, string])[] = [
  ['halfOf', 'codes', 'levelAt'],
  ['halfAt', 'streamFieldAt', 'streamWordAt'],
  ['hadamard', 'thread', 'keyWordAt'],
  ['norm', 'tables', 'cache'],
  ['appendToken', 'block', 'sequence'],
];

it.each(collisions)('gives %s, %s and %s names of their own', async (...names) => {
  for (const target of Object.values(defaultTargets)) {
    const { files } = await generate(schemeOf(...names), smol, target);
    const text = files.get(target.language === 'cuda' ? 'append_token.cu' : 'append_token.wgsl')!;
    const declared = [...text.matchAll(/^(?:fn|__device__ __forceinline__ \w+) (\w+)\(/gm)].map(([, name]) => name!);
    expect(new Set(declared).size).toBe(declared.length);
  }
});

describe.each(deviceNames)('on %s', (name) => {
  it('compiles them', async () => {
    const device = await openDevice(name);
    try {
      const target = name === 'emulator' ? { ...defaultTargets.cuda, tensorCores: false } : defaultTargets.wgsl;
      for (const names of collisions) {
        const generated = await generate(schemeOf(...names), smol, target);
        await LoadedKernels.load(device, generated, ['append_token', 'decompress']);
      }
    } finally {
      await device.close();
    }
  });
});
