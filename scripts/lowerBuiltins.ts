import { readdir, readFile, writeFile } from 'node:fs/promises';
import { builtinsFile } from '../codegen/builtins.js';
import { lowerFiles } from '../codegen/lower/lower.js';
import { packagePath } from '../codegen/packageRoot.js';

/** Lowers the device functions of every built-in codec into `generated/device-functions.json`. */
export async function lowerBuiltins(): Promise<string> {
  const folder = packagePath('dsl', 'codecs');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.ts')).sort();
  const codecs: string[] = [];
  for (const file of names.map((name) => `${folder}/${name}`)) {
    // Some files only describe, and lowering refuses a file without a device function.
    if (/^ {2}'device';$/m.test(await readFile(file, 'utf8'))) codecs.push(file);
  }
  const functions = await lowerFiles([...codecs, packagePath('dsl', 'packing.ts'), packagePath('dsl', 'random.ts')]);
  return `${JSON.stringify(functions, null, 1)}\n`;
}

if (process.argv[1]?.includes('lowerBuiltins')) await writeFile(builtinsFile, await lowerBuiltins());
