import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, test } from 'vitest';
import { resolveModel } from '../../cli/resolve.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { cli, documentOf, errorOf, type Run, spawned, temporaryFolder } from './support.js';

const tokens = ['--tokens', '2048', '--json'] as const;
const config = {
  model_type: 'llama',
  hidden_size: 4096,
  num_hidden_layers: 32,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 131072,
};

async function inspectModel(model: string): Promise<Run> {
  return cli('inspect', 'shard', '--model', model, ...tokens);
}

describe('a scheme name', () => {
  test('that is unknown lists those that exist', async () => {
    const run = await cli('inspect', 'shart', '--model', 'smollm2-135m', ...tokens);
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message:
        'scheme: expected one of shard, shard-plus, tilt-fast, tilt-safe, kivi2, kivi4, kivi-k4v2, kvquant2, kvquant3, kvquant4, polarquant3, polarquant4, turboquant2, turboquant3, turboquant4, turboquant-prod4, turboquant-k8v4, int8, int4, int2, int4-hadamard, int2-hadamard, nf4, fp8-e4m3, fp8-e5m2, latent-int8, latent-fp8, latent-int4-hadamard, or a path that ends in .ts, .js or .mjs, got "shart"',
      hint: 'For a scheme of your own, give the file that exports it.',
    });
  });
});

describe('a model name', () => {
  test('that is unknown lists those that exist', async () => {
    const run = await inspectModel('gpt-5');
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message:
        'model: expected one of llama-3.1-8b, smollm2-135m, llama-2-7b, mistral-7b, qwen2.5-7b, llama-3.2-1b, qwen3-8b, phi-3-mini, phi-4-mini, gemma-2-9b, gemma-3-4b, pythia-1.4b, stablelm-2-1.6b, smollm3-3b, deepseek-v3, deepseek-v2-lite, or the path of a config.json, got "gpt-5", which does not exist',
      hint: 'For any other model, give its Hugging Face config.json.',
    });
  });

  test('may be a config.json, or its folder', async () => {
    const folder = join(temporaryFolder(), 'my model');
    mkdirSync(folder);
    const file = join(folder, 'config.json');
    writeFileSync(file, JSON.stringify(config));
    expect(await resolveModel(folder)).toEqual(await resolveModel(file));
    expect(await resolveModel(file)).toMatchObject({ name: 'my-model', kvHeads: 8, headDim: 128 });
  });

  test.each([
    ['', 'JSON, got Unexpected end of JSON input'],
    ['{"a": 1,}', /JSON, got Expected double-quoted property name in JSON at position 8/],
    ['[]', 'a Hugging Face config.json as an object, got a list'],
    [JSON.stringify({ ...config, model_type: 'bert' }), /one of llama, .*, got "bert"$/],
    [JSON.stringify({ ...config, num_key_value_heads: 7 }), 'a divisor of the 32 query heads, got 7'],
  ])('may not be a config.json of %j', async (text, fault) => {
    const file = join(temporaryFolder(), 'config.json');
    writeFileSync(file, text);
    const run = await inspectModel(file);
    expect(run.code).toBe(2);
    const { code, message } = errorOf(run);
    expect(code).toBe('invalid-model');
    expect(message.startsWith(file)).toBe(true);
    if (typeof fault === 'string') expect(message.endsWith(fault)).toBe(true);
    else expect(message).toMatch(fault);
  });

  test('may not be a folder without a config.json', async () => {
    const folder = temporaryFolder();
    expect(errorOf(await inspectModel(folder))).toEqual({
      code: 'invalid-model',
      message: `${join(folder, 'config.json')}: expected a file, got ENOENT`,
      hint: 'Give the path of a config.json.',
    });
  });
});

// One process a file: the hooks that load it belong to the whole process.
describe('a scheme file outside of the package', () => {
  const good = `import { shard, defineScheme, type Scheme } from 'kvforge';\nimport { sinks } from './sinks.js';\n`;

  async function inspectFile(text: string, name = 'mine.ts', suffix = ''): Promise<{ run: Run; file: string }> {
    const folder = temporaryFolder();
    const file = join(folder, name);
    writeFileSync(
      join(folder, 'sinks.ts'),
      'export enum Count { Eight = 8 }\nexport const sinks: number = Count.Eight;\n',
    );
    writeFileSync(file, text);
    return { run: await spawned(['inspect', file + suffix, '--model', 'smollm2-135m', ...tokens]), file };
  }

  test('imports kvforge and its neighbours, and may print', async () => {
    const { run } = await inspectFile(
      `${good}console.log('noise');\nexport default defineScheme({ ...shard, name: 'mine', sinks } satisfies Scheme);\n`,
    );
    expect(run.code).toBe(0);
    expect(documentOf(run)).toMatchObject({ scheme: 'mine', capacity: { sinks: 8 } });
  });

  test('may be a proxy that refuses other names than its own', async () => {
    const get = "get: (all, key) => { if (key in all) return Reflect.get(all, key); throw new Error('what?'); }";
    const { run } = await inspectFile(`${good}export const own = new Proxy({ ...shard, sinks }, { ${get} });\n`);
    expect(documentOf(run)).toMatchObject({ scheme: 'shard', capacity: { sinks: 8 } });
  });

  test('may export several, one of which is named', async () => {
    const several = `${good}export const a = { ...shard, name: 'a' };\nexport const b = { ...shard, name: 'b', sinks };\n`;
    expect(documentOf((await inspectFile(several, 'mine.ts', '#b')).run)).toMatchObject({ scheme: 'b' });
    const { run, file } = await inspectFile(several);
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({
      code: 'invalid-scheme',
      message: `${file}: expected one scheme, got a, b`,
      hint: 'Pick one by its name: file.ts#a.',
    });
  });

  test.each([
    ['export const x = ;\n', ':1:18: expected a file that loads, got SyntaxError: Expression expected.'],
    ['\n\n  throw new TypeError("no way");\n', ':3:9: expected a file that loads, got TypeError: no way'],
    ['export const x = 1;\n', ': expected an exported scheme, got only x'],
    ['export default Promise.resolve(1);\n', ': expected an exported scheme, got a promise as default'],
    ['process.exit(0);\n', ': expected a file that loads, got one that ended the process with code 0'],
    ['process.abort();\n', ': expected a file that loads, got one that ended the process by SIGABRT'],
    [
      "process.kill(process.pid, 'SIGKILL');\n",
      ': expected a file that loads, got one that ended the process by SIGKILL',
    ],
    ['await new Promise(() => {});\n', ': expected a file that loads, got one that never finished loading'],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, window: 0 };\n",
      ': window: expected a whole number from 1 to 1024, got 0',
    ],
    [
      "import { shard, defineScheme } from 'kvforge';\nexport default defineScheme({ ...shard, sinks: 99 });\n",
      ':2:16: sinks: expected a whole number from 0 to 64, got 99',
    ],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, sinks: 4n };\n",
      ': sinks: expected a whole number from 0 to 64, got 4n',
    ],
    [
      "import { shard } from 'kvforge';\nconst ring: unknown[] = [];\nring.push(ring);\nexport default { ...shard, window: ring };\n",
      ': window: expected a whole number from 1 to 1024, got an object that has no JSON',
    ],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, keys: Array(2) };\n",
      ': keys: expected codecs of kind rotary, low-rank, got [null,null]',
    ],
    [
      "import { shard } from 'kvforge';\nconst [unrope, pca] = shard.keys;\nexport default { ...shard, keys: [unrope, { ...pca,\nget rank() { throw new Error('no rank'); } }] };\n",
      ':4:20: keys[1].rank: expected a property that can be read, got Error: no rank',
    ],
    [
      "export default new Proxy({}, {\nhas(_, key) { if (key === 'keys') throw new Error('no has'); return false; } });\n",
      ':2:41: expected a scheme that can be read, got Error: no has',
    ],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, stream: new Proxy(shard.stream, { ownKeys() { throw 5n; } }) };\n",
      ': stream: expected a property that can be read, got Error: a thrown bigint: 5',
    ],
    [
      'throw Object.create(null);\n',
      ': expected a file that loads, got Error: a thrown object: something without a text',
    ],
  ])('%j is refused', async (text, message) => {
    const { run, file } = await inspectFile(text);
    expect(run.code).toBe(2);
    expect(errorOf(run)).toMatchObject({ code: 'invalid-scheme', message: file + message });
  });

  test.each([
    ['for (;;);\n'],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, stream: { ...shard.stream, levels: () => { for (;;); } } };\n",
    ],
    [
      "import { shard } from 'kvforge';\nexport default { ...shard, stream: { ...shard.stream, levels: (d: number) => { while (d === 80); return []; } } };\n",
    ],
    ["import { shard } from 'kvforge';\nexport default { ...shard, get window() { for (;;); } };\n"],
    ["import { shard } from 'kvforge';\nexport default new Proxy(shard, { has: () => { for (;;); } });\n"],
  ])('%j never ends, and is killed', (text) => {
    const file = join(temporaryFolder(), 'loop.ts');
    writeFileSync(file, text);
    const load = pathToFileURL(packagePath('cli', 'loader', 'load.ts')).href;
    const script = join(file, '..', 'load.mjs');
    writeFileSync(
      script,
      `const { loadScheme } = await import(${JSON.stringify(load)});
      await loadScheme(${JSON.stringify(file)}, 80, 2000).catch((error) => console.log(error.message));`,
    );
    const { stdout } = spawnSync(process.execPath, ['--import', 'tsx', script], {
      cwd: packagePath(),
      encoding: 'utf8',
    });
    expect(stdout).toBe(
      `${file}: expected a file that loads within 2 s, got one that was still running. Look for a loop, or a promise that never settles.\n`,
    );
  });

  test('that does not exist is refused', async () => {
    expect(errorOf(await cli('inspect', '/nowhere/mine.ts', '--model', 'smollm2-135m', ...tokens))).toEqual({
      code: 'invalid-scheme',
      message: '/nowhere/mine.ts: expected a scheme file, got no such file',
      hint: 'Check the path.',
    });
  });
});
