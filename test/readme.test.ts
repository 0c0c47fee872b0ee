import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { packagePath } from '../codegen/packageRoot.js';
import { spawned, temporaryFolder } from './cli/support.js';

const readme = readFileSync(packagePath('README.md'), 'utf8');
const blocks = (language: string) =>
  [...readme.matchAll(new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, 'g'))].map(([, text]) => text!);

const config = {
  model_type: 'llama',
  hidden_size: 128,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 2048,
  rope_theta: 10000,
};

const commands = [
  ...new Set(blocks('sh').flatMap((block) => block.split('\n').filter((line) => line.startsWith('npx kvforge ')))),
];

describe('the README', () => {
  it.each(commands)('%s', async (command) => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
    const args = command
      .split(' ')
      .slice(2)
      .map((arg) => {
        if (arg === 'path/to/config.json') return join(folder, 'config.json');
        if (arg === 'kernels' || arg === 'my-kernels') return join(folder, arg);
        return arg.startsWith('examples/') ? packagePath(arg) : arg;
      });
    // Not into the checkout, where a reader's files would go.
    if (args[0] === 'new') args.push('--dir', folder);
    const run = await spawned(args, undefined, { KVFORGE_LIBCUDA: '/nowhere/libcuda.so.1' });
    if (args.includes('cuda') && args.includes('--device')) {
      // Here without a GPU, also where there is one: it gets as far as the device, so the rest of the command is right.
      expect(run.code).toBe(3);
      expect(run.err).toContain('KVFORGE_LIBCUDA');
      return;
    }
    expect(run.err + run.out).not.toContain('expected');
    expect(run.code).toBe(0);
  });

  it('names only npm scripts that exist', () => {
    const { scripts } = JSON.parse(readFileSync(packagePath('package.json'), 'utf8')) as {
      scripts: Record<string, string>;
    };
    const named = [...readme.matchAll(/npm (?:run )?(test|demo|goldens|[a-z]+) ?/g)].map(([, name]) => name!);
    for (const name of named.filter((word) => word !== 'ci')) expect(Object.keys(scripts)).toContain(name);
  });

  it('shows the scheme that is in examples/', () => {
    const example = readFileSync(packagePath('examples', 'my-scheme.ts'), 'utf8');
    expect(blocks('ts')).toContain(example);
  });

  it('shows code that runs for a model of your own', async () => {
    const code = blocks('ts').find((block) => block.includes('KvCache.open'))!;
    expect(code.split('\n').filter(Boolean).length).toBeLessThanOrEqual(10);
    const source = (name: string) => pathToFileURL(packagePath(name, 'index.ts')).href;
    const folder = packagePath('.cache', 'readme');
    const file = join(folder, 'your-model.ts');
    mkdirSync(folder, { recursive: true });
    const half = '(count: number) => Uint16Array.from({ length: count }, (_, i) => 0x3000 + ((i * 7919) % 2048))';
    writeFileSync(
      file,
      [
        `const config = ${JSON.stringify(config)};`,
        `const half = ${half};`,
        'const [keys, values, query] = [half(2 * 200 * 32), half(2 * 200 * 32), half(4 * 32)];',
        code
          .replace("'kvforge'", `'${source('dsl')}'`)
          .replace("'kvforge/codegen'", `'${source('codegen')}'`)
          .replace("'kvforge/runtime'", `'${source('runtime')}'`),
        'export const result = output;',
      ].join('\n'),
    );
    try {
      const { result } = (await import(/* @vite-ignore */ file)) as { result: Float32Array };
      expect(result).toHaveLength(4 * 32);
      expect(result.every((x) => Number.isFinite(x))).toBe(true);
      expect(result.some((x) => x !== 0)).toBe(true);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
