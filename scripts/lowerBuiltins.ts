import { readdir, writeFile } from 'node:fs/promises';
import { builtinsFile } from '../codegen/builtins.js';
import { lowerFiles } from '../codegen/lower/lower.js';
import { packagePath } from '../codegen/packageRoot.js';

/** Lowers the device functions of every built-in codec into `generated/device-functions.json`. */
export async function lowerBuiltins(): Promise<string> {
  const folder = packagePath('dsl', 'codecs');
  const codecs = (await readdir(folder)).filter((name) => name.endsWith('.ts')).sort();
  const files = [
    ...codecs.map((name) => `${folder}/${name}`),
    packagePath('dsl', 'packing.ts'),
    packagePath('dsl', 'random.ts'),
  ];
  const functions = await lowerFiles(files);
  return `${JSON.stringify(functions, null, 1)}\n`;
}

if (process.argv[1]?.includes('lowerBuiltins')) await writeFile(builtinsFile, await lowerBuiltins());
