import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

function findRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) return process.cwd();
    folder = parent;
  }
  return folder;
}

/** Folder of the installed package: the same whether the code runs from `dist` or from its sources. */
export const packageRoot = findRoot();

/** A path inside the package. */
export function packagePath(...parts: readonly string[]): string {
  return join(packageRoot, ...parts);
}
