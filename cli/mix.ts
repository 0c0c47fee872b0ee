import { extname } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import { geometryOf } from '../dsl/geometry.js';
import type { ModelShape } from '../dsl/model.js';
import { isScalar, type ScalarScheme } from '../dsl/scheme.js';
import { leastBytesPerToken, type Mixed, type MixedLayer, type MixSearch, searchMix } from '../runtime/mix/search.js';
import { activationsFor } from './activations.js';
import { inFile } from './inFile.js';
import { importsOf, mixModule } from './mixModule.js';
import { commandOf } from './origin.js';
import { type Context, jsonDocument, type Outcome } from './output.js';
import { requirePlace, writeWhole } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { table } from './table.js';
import { commaList, oneOfNames, wholeNumber } from './values.js';

export interface MixOptions {
  readonly model: string;
  readonly bytesPerToken: string;
  readonly activations?: string;
  readonly schemes: string;
  readonly front?: string;
  readonly out?: string;
}

const mostBytes = 2 ** 24;

/** Keys and values of every recorded layer, each with the scheme that suits it best within a budget. */
export async function mixCommand(context: Context, options: MixOptions): Promise<Outcome> {
  const bytesOf = (option: string, text: string) => wholeNumber(option, text, { from: 1, to: mostBytes });
  const budget = bytesOf('--bytes-per-token', options.bytesPerToken);
  const others = options.front === undefined ? [] : commaList(options.front).map((text) => bytesOf('--front', text));
  const { out } = options;
  if (out !== undefined) {
    oneOfNames('--out, its ending', extname(out), ['.ts', '.json']);
    await requirePlace(out, '--out');
  }
  const model = await resolveModel(options.model);
  const names = commaList(options.schemes);
  const candidates = await Promise.all(names.map((name) => candidate(name, model)));
  checkNames(candidates);
  // A name that a file of schemes cannot be written with is refused before the work.
  const imports = out !== undefined && extname(out) === '.ts' ? importsOf(names, candidates, out) : undefined;
  const { layers, layer: load, description } = await activationsFor(model, options.activations);
  const input = { model, layers, load, candidates };
  const least = leastBytesPerToken(input);
  if (budget < least) throw tooSmall(budget, least);
  context.progress(`mixing ${names.join(', ')} for layers ${layers.join(', ')} of ${description}`);
  const search = searchMix({ ...input, budgets: [budget, ...others], progress: context.progress });
  const best = search.mixes[0]!;

  const command = commandOf('mix', '', options);
  const document = documentOf({ model: model.name, source: description, least, budget, others, search, best });
  if (out !== undefined) {
    const contents = imports
      ? mixModule({ model: model.name, source: description, command, budget, search, best, imports })
      : jsonDocument(document);
    await writeWhole(out, '--out', contents);
  }
  return { json: document, text: textOf({ budget, others, search, best, out }, context) };
}

async function candidate(name: string, model: ModelShape): Promise<ScalarScheme> {
  const scheme = await resolveScheme(name, model);
  if (!isScalar(scheme)) {
    throw new KvforgeError('wrong-use', {
      at: '--schemes',
      expected: 'schemes that code every channel by itself',
      received: `${name}, whose keys are low-rank`,
      hint: 'Put it beside a mix with kvforge compare.',
    });
  }
  // What does not fit the model is refused by the scheme's name.
  inFile(name, () => geometryOf(scheme, model));
  return scheme;
}

function checkNames(candidates: readonly ScalarScheme[]): void {
  const names = candidates.map(({ name }) => name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice === undefined) return;
  throw new KvforgeError('wrong-use', {
    at: '--schemes',
    expected: 'schemes of different names',
    received: `two that are called ${twice}`,
    hint: 'Give one of them another name.',
  });
}

function tooSmall(budget: number, least: number): KvforgeError {
  return new KvforgeError('wrong-use', {
    at: '--bytes-per-token',
    expected: `at least ${Math.ceil(least)}, what the smallest of the schemes take`,
    received: String(budget),
    hint: 'Raise it, or add a smaller scheme to --schemes.',
  });
}

interface Found {
  readonly budget: number;
  readonly others: readonly number[];
  readonly search: MixSearch;
  readonly best: Mixed;
}

interface Documented extends Found {
  readonly model: string;
  readonly source: string;
  readonly least: number;
}

function documentOf({ model, source, least, budget, others, search, best }: Documented) {
  const { sinks, window, unit, exact, mixes, uniform } = search;
  return {
    ...{ model, source, budget, sinks, window },
    grid: { unit, exact },
    leastBytesPerToken: least,
    ...mixJson(best),
    front: others.map((other, index) => {
      const found = mixes[index + 1];
      return { budget: other, mix: found === undefined ? null : mixJson(found) };
    }),
    uniform: uniform.map(({ scheme, alone, mix }) => ({
      scheme: scheme.name,
      alone: mixJson(alone),
      mix: mixJson(mix),
    })),
  };
}

function mixJson({ layers, bytes, bytesPerToken, predicted, together }: Mixed) {
  return {
    ...{ bytes, bytesPerToken, predicted, error: together },
    layers: layers.map((each) => ({
      layer: each.layer,
      tokens: each.tokens,
      keys: each.keys.name,
      values: each.values.name,
      bytes: each.bytes,
      keysError: each.keysError,
      valuesError: each.valuesError,
      predicted: each.predicted,
      error: each.together,
    })),
  };
}

const percent = (error: number) => `${(error * 100).toFixed(2)}%`;
const right = (title: string) => ({ title, align: 'right' }) as const;

function textOf(
  { budget, search, best, others, out }: Found & { out: string | undefined },
  { colors }: Context,
): string {
  const columns = [
    ...[right('layer'), { title: 'keys' }, { title: 'values' }],
    ...['bytes a token', 'keys alone', 'values alone', 'predicted', 'together'].map(right),
  ];
  const rows = best.layers.map((each: MixedLayer) => [
    ...[String(each.layer), each.keys.name, each.values.name, (each.bytes / each.tokens).toFixed(1)],
    ...[each.keysError, each.valuesError, each.predicted, each.together].map(percent),
  ]);
  const { bytesPerToken, predicted, together } = best;
  rows.push(['all', '', '', bytesPerToken.toFixed(1), '', '', percent(predicted), percent(together)]);
  const { sinks, window, unit, exact } = search;
  const grid = exact ? 'no other choice within the bytes has less' : 'bytes count as rounded up to a step';
  const lines = [
    'Errors are those of attention outputs; of all layers, the root of the mean square. Predicted: keys alone and values alone, squared and added.',
    `${sinks} sinks and a window of ${window} tokens are exact in every layer. Searched in steps of ${unit} bytes: ${grid}.`,
    ...(out === undefined ? [] : [`wrote ${out}`]),
  ];
  return `${table(columns, rows, colors)}\n${frontText({ budget, others, search, best }, colors)}\n${lines.join('\n')}\n`;
}

/** Every budget, smallest first; beside a mix the scheme whose bytes its budget is. */
function frontText({ budget, others, search, best }: Found, colors: boolean): string {
  const given = [budget, ...others].map((bytes, index) => ({
    budget: bytes,
    mix: index === 0 ? best : search.mixes[index],
    beside: ['', ''],
  }));
  const uniform = search.uniform.map(({ scheme, alone, mix }) => ({
    budget: alone.bytesPerToken,
    mix,
    beside: [scheme.name, percent(alone.together)],
  }));
  const rows = [...given, ...uniform]
    .sort((a, b) => a.budget - b.budget)
    .map((row) => [
      row.budget.toFixed(1),
      ...(row.mix === undefined
        ? ['too few', '', '']
        : [row.mix.bytesPerToken.toFixed(1), percent(row.mix.predicted), percent(row.mix.together)]),
      ...row.beside,
    ]);
  const columns = [
    ...['budget', 'bytes a token', 'predicted', 'together'].map(right),
    { title: 'that of' },
    right('by itself'),
  ];
  return table(columns, rows, colors);
}
