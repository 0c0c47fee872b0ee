import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packagePath } from '../../codegen/packageRoot.js';
import { layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import { geometryOf } from '../../dsl/geometry.js';
import { shard } from '../../dsl/index.js';
import { archiveErrors } from '../../runtime/archive/errors.js';
import { layerTensors, promptLayers } from '../../runtime/promptLayers.js';
import { loadActivations } from '../../runtime/report/activations.js';
import { packSafetensors, parseSafetensors } from '../../runtime/safetensors.js';
import { cli, documentOf } from './support.js';

export const recorded = packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors');

/** A row of the table in docs/archive.md; errors are means over the layers, in percent. */
export interface TableRow {
  readonly name: string;
  readonly bytesPerToken: number;
  readonly ratio: number;
  readonly keys: number;
  readonly values: number;
  readonly attention: number;
}

interface Errors {
  readonly keys: number;
  readonly values: number;
  readonly attention?: number | undefined;
}

function rowOf(name: string, bytesPerToken: number, errors: readonly Errors[]): TableRow {
  const mean = (of: (each: Errors) => number) =>
    (100 * errors.reduce((sum, each) => sum + of(each), 0)) / errors.length;
  return {
    ...{ name, bytesPerToken, ratio: 768 / bytesPerToken },
    keys: mean(({ keys }) => keys),
    values: mean(({ values }) => values),
    attention: mean(({ attention }) => attention!),
  };
}

/** What the command says of a budget. */
export async function archiveRow(budget: number, folder: string): Promise<TableRow> {
  const args = ['--model', 'smollm2-135m', '--budget', String(budget), '--out', join(folder, 'a.kvarchive'), '--json'];
  const document = documentOf(await cli('archive', 'pack', recorded, ...args));
  const { bytesPerToken, errors } = document as { bytesPerToken: number; errors: Errors[] };
  return rowOf(String(budget), bytesPerToken, errors);
}

/** The same of what Shard's kernels write on the emulator. */
export async function shardRow(folder: string): Promise<TableRow> {
  const { model, layers, layer } = await loadActivations(recorded);
  const activations = layers.map(layer);
  const [input, output] = [join(folder, 'in.safetensors'), join(folder, 'out.safetensors')];
  const tensors = activations.flatMap(({ layer: number, keyBits, valueBits, tokens }) => [
    ...layerTensors(number, { keys: keyBits, values: valueBits, tokens }, model),
  ]);
  writeFileSync(input, packSafetensors(new Map(tensors), {}));
  const files = ['--input', input, '--output', output];
  await cli('reconstruct', 'shard', '--model', 'smollm2-135m', '--device', 'emulator', ...files);
  const read = promptLayers(parseSafetensors(readFileSync(output)), model);
  const errors = activations.map((exact, index) => {
    const { keys, values } = read[index]!.prompt();
    const { layer: number, tokens, keyBits, valueBits, queries, visible } = exact;
    const before = { layer: number, tokens, keys: keyBits, values: valueBits, asked: { queries, visible } };
    return archiveErrors(model, before, { layer: number, tokens, keys, values: values! });
  });
  const tokens = activations[0]!.tokens;
  const { bytes } = layoutSequence(geometryOf(shard, model), { tokens, generated: 0 });
  return rowOf('`shard`', (bytes + recordBytes) / tokens, errors);
}

/** Rows as they are in the document. */
export function tableOf(rows: readonly TableRow[]): string {
  const lines = rows.map(({ name, bytesPerToken, ratio, keys, values, attention }) => {
    const errors = [keys, values, attention].map((error) => `${error.toFixed(2)}%`);
    return `| ${[name, bytesPerToken.toFixed(1), ratio.toFixed(2), ...errors].join(' | ')} |`;
  });
  return [
    '| budget | bytes a token | to f16 | keys | values | attention |',
    '|---|---|---|---|---|---|',
    ...lines,
  ].join('\n');
}

/** The rows that a document has. */
export function rowsIn(document: string): readonly TableRow[] {
  const row = /^\| (\d+|`shard`) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$/gm;
  return [...document.matchAll(row)].map(([, name, ...numbers]) => {
    const [bytesPerToken, ratio, keys, values, attention] = numbers.map(Number) as [
      number,
      number,
      number,
      number,
      number,
    ];
    return { name: name!, bytesPerToken, ratio, keys, values, attention };
  });
}
