import { existsSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import type { ModelShape } from '../dsl/model.js';
import type { Scheme } from '../dsl/scheme.js';
import { inFile } from './inFile.js';

/** Every preset scheme, loaded when it is asked for. */
const presets: Readonly<Record<string, () => Promise<Scheme>>> = {
  shard: async () => (await import('../dsl/schemes/shard.js')).shard,
  'shard-plus': async () => (await import('../dsl/schemes/shardPlus.js')).shardPlus,
  kivi2: async () => (await import('../dsl/schemes/kivi.js')).kivi2,
  kivi4: async () => (await import('../dsl/schemes/kivi.js')).kivi4,
  kvquant2: async () => (await import('../dsl/schemes/kvquant.js')).kvquant2,
  kvquant3: async () => (await import('../dsl/schemes/kvquant.js')).kvquant3,
  kvquant4: async () => (await import('../dsl/schemes/kvquant.js')).kvquant4,
  turboquant2: async () => (await import('../dsl/schemes/turboquant.js')).turboQuant2,
  turboquant3: async () => (await import('../dsl/schemes/turboquant.js')).turboQuant3,
  turboquant4: async () => (await import('../dsl/schemes/turboquant.js')).turboQuant4,
  'turboquant-k8v4': async () => (await import('../dsl/schemes/turboquant.js')).turboQuantK8V4,
  int8: async () => (await import('../dsl/schemes/integer.js')).int8,
  int4: async () => (await import('../dsl/schemes/integer.js')).int4,
  int2: async () => (await import('../dsl/schemes/integer.js')).int2,
  'int4-hadamard': async () => (await import('../dsl/schemes/integer.js')).int4Hadamard,
  'int2-hadamard': async () => (await import('../dsl/schemes/integer.js')).int2Hadamard,
  nf4: async () => (await import('../dsl/schemes/nf4.js')).normalFloat4,
  'fp8-e4m3': async () => (await import('../dsl/schemes/fp8.js')).fp8E4M3,
  'fp8-e5m2': async () => (await import('../dsl/schemes/fp8.js')).fp8E5M2,
};

export const schemeNames = Object.keys(presets);

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
