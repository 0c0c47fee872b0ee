import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { packagePath } from '../codegen/packageRoot.js';
import { KvforgeError } from '../dsl/errors.js';
import { schemeNames } from '../dsl/schemes/presets.js';
import { type Context, type Outcome, UsageError } from './output.js';
import { quoted } from './quoted.js';

export interface NewSchemeOptions {
  readonly dir: string;
}

/** Writes a scheme with a codec of its own, and its test: working files, to be changed. */
export async function newScheme(_context: Context, name: string, { dir }: NewSchemeOptions): Promise<Outcome> {
  if (!/^[a-z][a-z0-9-]{0,39}$/.test(name)) {
    throw new UsageError(
      `name: expected lower-case letters, digits and hyphens, at most 40, got ${JSON.stringify(name)}`,
      'For example: kvforge new scheme my-scheme.',
    );
  }
  if (schemeNames.includes(name)) {
    throw new UsageError(
      `name: expected one that no preset has, got ${JSON.stringify(name)}`,
      `For example: my-${name}.`,
    );
  }
  const files: string[] = [];
  for (const ending of ['.ts', '.test.ts']) {
    const text = await readFile(packagePath('examples', `new-scheme${ending}`), 'utf8');
    const path = join(dir, `${name}${ending}`);
    // Exclusive: what a user has written is not written over, not even in between.
    await writeFile(path, text.replaceAll('new-scheme', name), { flag: 'wx' }).catch(
      async (error: NodeJS.ErrnoException) => {
        // Both or none: a scheme left alone would be in the way when the test's name is free again.
        for (const written of files) await rm(written);
        throw new KvforgeError(
          'wrong-use',
          {
            at: path,
            expected: 'a file that can be made',
            received: error.code === 'EEXIST' ? 'one that is there' : (error.code ?? error.message),
            hint: 'Take another name, or another --dir.',
          },
          { cause: error },
        );
      },
    );
    files.push(path);
  }
  const [scheme] = files;
  return {
    json: { name, files },
    text: [
      ...files.map((path) => `wrote ${path}`),
      `next: kvforge verify ${quoted(scheme!)} --model llama-3.1-8b --device emulator --cases 20`,
    ].join('\n'),
  };
}
