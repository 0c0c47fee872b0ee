import { readFile } from 'node:fs/promises';
import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import { type ArchiveErrors, archiveErrors, type ExactLayer } from '../runtime/archive/errors.js';
import { type ArchiveSummary, inspectArchive } from '../runtime/archive/inspect.js';
import { packArchive } from '../runtime/archive/pack.js';
import { numbersOf } from '../runtime/archive/rows.js';
import { unpackArchive } from '../runtime/archive/unpack.js';
import { layerTensors, promptLayers } from '../runtime/promptLayers.js';
import { loadActivations } from '../runtime/report/activations.js';
import { packSafetensors, parseSafetensors } from '../runtime/safetensors.js';
import { inFile } from './inFile.js';
import type { Context, Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel } from './resolve.js';
import { grouped, table } from './table.js';
import { wholeNumber } from './values.js';

export interface PackCommandOptions {
  readonly model: string;
  readonly budget: string;
  readonly out: string;
  readonly sinks: string;
  readonly window: string;
  readonly jointLayers: string;
  readonly basis?: string;
}

const most = 2 ** 24;

/** Packs the layers of a file, reads them back, and says what they lost. */
export async function packCommand(context: Context, input: string, options: PackCommandOptions): Promise<Outcome> {
  const { out } = options;
  const bytesPerToken = wholeNumber('--budget', options.budget, { from: 1, to: most });
  const sinks = wholeNumber('--sinks', options.sinks, { from: 0, to: most });
  const window = wholeNumber('--window', options.window, { from: 0, to: most });
  const jointLayers = wholeNumber('--joint-layers', options.jointLayers, { from: 1, to: 1024 });
  await requirePlace(out, '--out');
  const model = await resolveModel(options.model);
  const basis = options.basis === undefined ? undefined : await bytesOf(options.basis, '--basis');
  const layers = await layersOf(input, model);
  const { tokens } = layers[0]!;
  context.progress(`packing ${layers.length} layers of ${tokens} tokens of ${model.name}`);
  const file = inFile(input, () =>
    packArchive(
      { model, tokens, layers },
      { ...{ bytesPerToken, sinks, window, jointLayers }, ...(basis === undefined ? {} : { basis }) },
    ),
  );
  const read = unpackArchive(file, basis === undefined ? { model } : { model, basis });
  const errors = layers.map((layer, index) => archiveErrors(model, layer, read.layers[index]!));
  await writeWhole(out, '--out', file);
  const summary = inspectArchive(file);
  return {
    json: { ...summary, out, errors },
    text: `${errorTable(errors, context)}\n${sizeLine(out, summary)}`,
  };
}

export interface UnpackCommandOptions {
  readonly out: string;
  readonly model?: string;
  readonly basis?: string;
}

/** Writes what an archive holds as a safetensors file. */
export async function unpackCommand(_: Context, input: string, options: UnpackCommandOptions): Promise<Outcome> {
  const { out } = options;
  await requirePlace(out, '--out');
  const model = options.model === undefined ? undefined : await resolveModel(options.model);
  const basis = options.basis === undefined ? undefined : await bytesOf(options.basis, '--basis');
  const file = await bytesOf(input, 'archive');
  const read = inFile(input, () =>
    unpackArchive(file, { ...(model === undefined ? {} : { model }), ...(basis === undefined ? {} : { basis }) }),
  );
  const tensors = new Map(read.layers.flatMap((layer) => [...layerTensors(layer.layer, layer, read.model)]));
  await writeWhole(out, '--out', packSafetensors(tensors, { model: read.model.name }));
  const layers = read.layers.map(({ layer }) => layer);
  return {
    json: { model: read.model, tokens: read.tokens, layers, out },
    text: `wrote ${out}: ${read.tokens} tokens of layers ${layers.join(', ')} of ${read.model.name}\n`,
  };
}

/** Says what is in an archive. */
export async function inspectCommand(context: Context, input: string): Promise<Outcome> {
  const file = await bytesOf(input, 'archive');
  const summary = inFile(input, () => inspectArchive(file));
  const columns = [
    ...[{ title: 'operand' }, { title: 'layers' }],
    ...['components', 'of', 'basis bytes', 'code bytes', 'error of coded'].map(right),
    { title: 'components x bits' },
  ];
  const rows = summary.parts.map(({ operand, layers, rank, width, groups, basisBytes, error }) => [
    ...[operand, layers.join(', '), String(rank), String(width), grouped(basisBytes)],
    grouped(groups.reduce((sum, { bytes }) => sum + bytes, 0)),
    ...[percent(error), groups.map(({ components, bits }) => `${components}x${bits}`).join(' ')],
  ]);
  const { model, tokens, sinks, window, coded, exactBytes, headerBytes, basis } = summary;
  const lines = [
    `${tokens} tokens of ${model.name}: ${coded} coded, ${tokens - coded} exact (sinks ${sinks}, window ${window}) in ${grouped(exactBytes)} bytes; header ${grouped(headerBytes)}.`,
    ...(basis === undefined ? [] : [`Its bases are those of another archive, of sha256 ${basis}.`]),
  ];
  return {
    json: summary,
    text: `${table(columns, rows, context.colors)}\n${lines.join('\n')}\n${sizeLine(input, summary)}`,
  };
}

const right = (title: string) => ({ title, align: 'right' }) as const;
const percent = (error: number) => `${(error * 100).toFixed(2)}%`;

function errorTable(errors: readonly ArchiveErrors[], { colors }: Context): string {
  const columns = ['layer', 'keys', 'values', 'attention'].map(right);
  const rows = errors.map(({ layer, keys, values, attention }) => [
    ...[String(layer), percent(keys), percent(values)],
    attention === undefined ? 'no queries' : percent(attention),
  ]);
  return table(columns, rows, colors);
}

function sizeLine(path: string, { bytes, bytesPerToken, fp16Bytes }: ArchiveSummary): string {
  const ratio = (fp16Bytes / bytes).toFixed(2);
  return `${path}: ${grouped(bytes)} bytes, ${bytesPerToken.toFixed(1)} a token and layer; fp16 ${grouped(fp16Bytes)}, ${ratio} times as many.\n`;
}

async function bytesOf(path: string, at: string): Promise<Uint8Array> {
  return readFile(path).catch((cause: NodeJS.ErrnoException) => {
    const received = cause.code ?? cause.message;
    const hint = 'Give a file of less than 2 GiB; layers may be spread over several.';
    const parts = { at: `${at} ${path}`, expected: 'a file that can be read', received, hint };
    throw new KvforgeError('wrong-use', parts, { cause });
  });
}

/** Layers of a file that was recorded (`layers.N.k`), or of one as `reconstruct` reads it (`layers.N.keys`). */
async function layersOf(path: string, model: ModelShape): Promise<readonly ExactLayer[]> {
  const parsed = await bytesOf(path, 'activations').then((bytes) => inFile(path, () => parseSafetensors(bytes)));
  const recorded = [...parsed.tensors.keys()].some((name) => /^layers\.\d+\.k$/.test(name));
  const layers = recorded ? await recordedLayers(path, model) : inFile(path, () => givenLayers(parsed, model));
  const { layer, tokens } = layers[0]!;
  const other = layers.find((each) => each.tokens !== tokens);
  if (other === undefined) return layers;
  throw new KvforgeError('invalid-input', {
    at: `${path}: layer ${other.layer}`,
    expected: `${tokens} tokens, as layer ${layer} has`,
    received: String(other.tokens),
    hint: 'Pack layers of different lengths into archives of their own.',
  });
}

async function recordedLayers(path: string, model: ModelShape): Promise<readonly ExactLayer[]> {
  const activations = await loadActivations(path, model);
  return activations.layers.map((number) => {
    const { layer, tokens, keyBits, valueBits, queries, visible } = activations.layer(number);
    return { layer, tokens, keys: keyBits, values: valueBits, asked: { queries, visible } };
  });
}

function givenLayers(parsed: ReturnType<typeof parseSafetensors>, model: ModelShape): readonly ExactLayer[] {
  return promptLayers(parsed, model).map(({ layer, tokens, prompt }) => {
    const { keys, values, queries } = prompt();
    // Only models of latents have none, and packing refuses those.
    return { layer, tokens, keys, values: values!, asked: queries && askedBy(queries, tokens, model) };
  });
}

function askedBy(bits: Uint16Array, tokens: number, { heads, headDim }: ModelShape): ExactLayer['asked'] {
  const count = bits.length / (heads * headDim);
  const visible = Array.from({ length: count }, (_, index) => tokens - count + index + 1);
  return { queries: { heads, tokens: count, channels: headDim, data: numbersOf(bits) }, visible };
}
