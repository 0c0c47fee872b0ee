import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { beforeAll, describe, expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { int4Hadamard, int8, kivi4 } from '../../dsl/index.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { loadActivations } from '../../runtime/report/activations.js';
import { type PolicyRow, policyTable, policyText } from '../../scripts/policyTable.js';

const text = readFileSync(packagePath('docs', 'policies.md'), 'utf8');

describe('docs/policies.md', () => {
  let rows: readonly PolicyRow[];
  beforeAll(async () => {
    const activations = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
    const device = await EmulatorDevice.open({ checks: 'none' });
    const { layers } = activations;
    rows = await policyTable(device, { schemes: [int8, int4Hadamard, kivi4], activations, layers });
    await device.close();
  });

  const cells = (line: string) => line.split('|').map((cell) => cell.trim());

  test('has the table that the command prints', () => {
    const printed = policyText(rows).split('\n');
    const found = text.split('\n').filter((line) => /^\| (scheme|int8|int4-hadamard|kivi4) \|/.test(line));
    expect(found[0]).toBe(printed[0]);
    expect(found.length).toBe(printed.length - 1);
    for (const [index, line] of found.slice(1).entries()) {
      const [own, said] = [cells(printed[index + 2]!), cells(line)];
      expect(said.slice(0, 5)).toEqual(own.slice(0, 5));
      // Of engines and processors that differ in the last digit of an exponential.
      expect(Math.abs(Number(said[5]) - Number(own[5]))).toBeLessThanOrEqual(0.0011);
    }
  });

  test('says what is so', () => {
    const of = (scheme: string, policy: string) => rows.filter((row) => row.scheme === scheme && row.policy === policy);
    for (const scheme of ['int8', 'int4-hadamard', 'kivi4']) {
      const [sinks, hitters] = [of(scheme, 'slidingSinks'), of(scheme, 'heavyHitters')];
      for (const [index, row] of hitters.entries()) expect(row.error).toBeLessThan(sinks[index]!.error);
    }
    for (const [index, row] of of('int8', 'heavyHitters').entries()) {
      const share = row.error / of('int8', 'slidingSinks')[index]!.error;
      expect(share).toBeGreaterThan(0.4);
      expect(share).toBeLessThan(0.5);
    }
    const [without, sinks] = [of('kivi4', 'slidingSinks, 0 sinks')[0]!, of('kivi4', 'slidingSinks')[0]!];
    expect(Math.round(without.error / sinks.error)).toBe(9);
  });

  test('shows code that runs', async () => {
    const source = (name: string) => pathToFileURL(packagePath(name, 'index.ts')).href;
    const folder = packagePath('.cache', `policies-${process.pid}`);
    mkdirSync(folder, { recursive: true });
    const blocks = [...text.matchAll(/```ts\n([\s\S]*?)```/g)].map(([, code]) => code!);
    expect(blocks).toHaveLength(2);
    const setting = `
      import { int8, presetModel } from '${source('dsl')}';
      import { defaultTargets, generate } from '${source('codegen')}';
      import { EmulatorDevice, KvCache, LoadedKernels } from '${source('runtime')}';
      const device = await EmulatorDevice.open({ checks: 'none' });
      const kernels = await LoadedKernels.load(device, await generate(int8, presetModel('smollm2-135m'), defaultTargets.cuda));
      const cache = KvCache.open(kernels, { sequences: 1, tokens: 1200, generated: 8 });
      const half = (count) => Uint16Array.from({ length: count }, (_, i) => 0x3000 + ((i * 7919) % 2048));
      await cache.prefill(0, { keys: half(1200 * 192), values: half(1200 * 192), tokens: 1200 });
      const query = half(576);
    `;
    const files = blocks.map((code, index) => {
      const file = join(folder, `block-${index}.ts`);
      const body = code.replaceAll("'kvforge/runtime'", `'${source('runtime')}'`);
      const result = index === 0 ? 'evictedTokens' : 'everySecond.select({ blocks: [{ first: 4 }, { first: 5 }] })';
      writeFileSync(file, `${index === 0 ? setting : ''}${body}\nexport const result = ${result};\n`);
      return file;
    });
    try {
      const [first, second] = await Promise.all(files.map((file) => import(/* @vite-ignore */ file)));
      // 1200 tokens less 4 sinks, 512 heavy hitters and 512 recent ones.
      expect(first.result).toBe(172);
      expect(second.result).toEqual([4]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
