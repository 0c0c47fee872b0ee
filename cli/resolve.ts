import { existsSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import { presets, schemeNames } from '../dsl/schemes/presets.js';
import { inFile } from './inFile.js';

/** More than any config.json; what is larger is some other file. */
const largestConfigBytes = 2 ** 24;

/**
 * The scheme a command names: a preset, or a user's file.
 *
 * @param model what the scheme is meant for
 * @throws KvforgeError `wrong-use` for a name that is neither, `invalid-scheme` for what the file exports
 */
export async function resolveScheme(name: string, { headDim }: Pick<ModelShape, 'headDim'>): Promise<Scheme> {
  if (Object.hasOwn(presets, name)) return presets[name]!();
  if (/\.[cm]?[jt]s(#[^/]*)?$/.test(name)) {
    const { loadScheme } = await import('./loader/load.js');
    return loadScheme(name, headDim);
  }
  throw new KvforgeError('wrong-use', {
    at: 'scheme',
    expected: `one of ${schemeNames.join(', ')}, or a path that ends in .ts, .js or .mjs`,
    received: JSON.stringify(name),
    hint: 'For a scheme of your own, give the file that exports it.',
  });
}

/**
 * The model a command names: a preset, or a Hugging Face config.json (or the folder that holds it).
 *
 * @throws KvforgeError `wrong-use` for a name that is neither, `invalid-model` for what the file holds
 */
export async function resolveModel(name: string): Promise<ModelShape> {
  const { modelFrom, presetModel, presetNames } = await import('../dsl/model.js');
  if ((presetNames as readonly string[]).includes(name)) return presetModel(name);
  if (!existsSync(name)) {
    throw new KvforgeError('wrong-use', {
      at: 'model',
      expected: `one of ${presetNames.join(', ')}, or the path of a config.json`,
      received: `${JSON.stringify(name)}, which does not exist`,
      hint: 'For any other model, give its Hugging Face config.json.',
    });
  }
  const file = (await stat(name)).isDirectory() ? join(name, 'config.json') : name;
  const config = await readJson(file);
  return inFile(file, () => modelFrom(config, modelName(file)));
}

/** Where it lies, since configurations do not carry a name; only letters that a file name or a comment can hold. */
function modelName(file: string): string {
  const stem = basename(file).replace(/\.json$/, '');
  const name = stem === 'config' ? basename(dirname(resolve(file))) : stem;
  return name.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, 60) || 'model';
}

async function readJson(file: string): Promise<unknown> {
  const refuse = (expected: string, received: string, hint: string, cause?: unknown): never => {
    throw new KvforgeError('invalid-model', { at: file, expected, received, hint }, { cause });
  };
  const info = await stat(file).catch((cause: NodeJS.ErrnoException) =>
    refuse('a file', cause.code ?? cause.message, 'Give the path of a config.json.', cause),
  );
  if (!info.isFile()) refuse('a file', 'something else', 'Give the path of a config.json.');
  if (info.size > largestConfigBytes)
    refuse(`at most ${largestConfigBytes} bytes`, `${info.size}`, 'Give the config.json, not the weights.');
  const text = await readFile(file, 'utf8').catch((cause: NodeJS.ErrnoException) =>
    refuse('a file that can be read', cause.code ?? cause.message, 'Check its permissions.', cause),
  );
  try {
    return JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch (cause) {
    return refuse('JSON', (cause as Error).message, 'Give a Hugging Face config.json.', cause);
  }
}
