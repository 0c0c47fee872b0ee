import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, onTestFinished, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { presetModel } from '../../dsl/index.js';
import { layerTensors } from '../../runtime/promptLayers.js';
import { packSafetensors } from '../../runtime/safetensors.js';
import { correlated } from '../runtime/archive/case.js';
import { archiveRow, rowsIn, shardRow, type TableRow } from './archiveTable.js';
import { cli, temporaryFolder } from './support.js';

const document = readFileSync(packagePath('docs', 'archive.md'), 'utf8');
const blocks = (language: string) =>
  [...document.matchAll(new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, 'g'))].map(([, text]) => text!);

describe('docs/archive.md', () => {
  test('shows commands that run in their order', async () => {
    const folder = temporaryFolder();
    const model = presetModel('smollm2-135m');
    const { layers, tokens } = correlated(400, [0], { model });
    const tensors = layers.flatMap(({ layer, ...data }) => [...layerTensors(layer, { ...data, tokens }, model)]);
    writeFileSync(join(folder, 'cache.safetensors'), packSafetensors(new Map(tensors), {}));
    const commands = blocks('sh').flatMap((block) => block.trim().split('\n'));
    expect(commands).toHaveLength(3);
    for (const command of commands) {
      // A short cache keeps more of its tokens exactly than the one that the budget is meant for.
      const words = command.replace('--budget 92', '--budget 240').split(' ').slice(2);
      const run = await cli(
        ...words.map((word) => (/\.(kvarchive|safetensors)$/.test(word) ? join(folder, word) : word)),
      );
      expect(run.err + run.out).not.toContain('expected');
      expect(run.code).toBe(0);
    }
  });

  test('shows code that runs', async () => {
    const folder = packagePath('.cache', `archive-docs-${process.pid}`);
    mkdirSync(folder, { recursive: true });
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const source = (...path: string[]) => pathToFileURL(packagePath(...path)).href;
    const mine = [
      `import { correlated, narrow } from '${source('test', 'runtime', 'archive', 'case.ts')}';`,
      'const input = correlated(300, [0, 1]);',
      'export const [model, tokens] = [narrow, input.tokens];',
      'export const layerOf = (layer) => ({ keys: input.layers[layer].keys, values: input.layers[layer].values });',
      'export const filled = [];',
      'export const cache = { prefill: async (...given) => filled.push(given) };',
    ];
    writeFileSync(join(folder, 'mine.ts'), mine.join('\n'));
    const [code] = blocks('ts');
    const shown = code!
      .replace("'kvforge/runtime'", `'${source('runtime', 'index.ts')}'`)
      .replace('{ layerOf,', '{ cache, layerOf,');
    writeFileSync(join(folder, 'shown.ts'), shown);
    await import(/* @vite-ignore */ pathToFileURL(join(folder, 'shown.ts')).href);
    const { filled } = (await import(/* @vite-ignore */ pathToFileURL(join(folder, 'mine.ts')).href)) as {
      filled: [number, { layer: number; keys: Uint16Array; tokens: number }][];
    };
    expect(filled).toHaveLength(1);
    expect(filled[0]).toMatchObject([0, { layer: 0, tokens: 300 }]);
  });

  describe('has a table', () => {
    const rows = rowsIn(document);
    // Engines differ in the last digits of cosines and logarithms. That may choose another of two nearly equal tables of
    // groups, with as many bytes and as large a mean square, which moved a layer's errors by up to 3 %.
    const near = (stated: TableRow, measured: TableRow) => {
      for (const figure of ['bytesPerToken', 'ratio', 'keys', 'values', 'attention'] as const) {
        const bound = figure === 'bytesPerToken' || figure === 'ratio' ? 0.005 : 0.04;
        expect(Math.abs(stated[figure] / measured[figure] - 1), `${stated.name}, ${figure}`).toBeLessThan(bound);
      }
    };

    test('of several budgets, and Shard', () => {
      expect(rows.map(({ name }) => name)).toEqual(['64', '92', '128', '192', '`shard`']);
      const [archive, shard] = [rows[1]!, rows[4]!];
      expect(archive.bytesPerToken).toBeLessThanOrEqual(shard.bytesPerToken);
      expect(archive.attention).toBeLessThan(0.8 * shard.attention);
    });

    test.each(rows.filter(({ name }) => name !== '`shard`'))('as the command says: budget $name', async (row) => {
      near(row, await archiveRow(Number(row.name), temporaryFolder()));
    });

    test("as Shard's kernels say", async () => near(rows[4]!, await shardRow(temporaryFolder())));
  });
});
