import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import ts from 'typescript';
import { afterAll, expect, it } from 'vitest';
import { packagePath, packageRoot } from '../../codegen/packageRoot.js';
import { presentGoldens, wantedGoldens } from '../../scripts/goldenFiles.js';

it('generates what is checked in under generated/', async () => {
  const [wanted, present] = await Promise.all([wantedGoldens(), presentGoldens()]);
  expect([...present.keys()].sort()).toEqual([...wanted.keys()].sort());
  const differing = [...wanted].filter(([name, text]) => present.get(name) !== text).map(([name]) => name);
  // After a change that is meant: npm run build && npm run goldens -- --update, and review the difference.
  expect(differing).toEqual([]);
});

const built = mkdtempSync(packagePath('node_modules', '.goldens-'));
afterAll(() => rmSync(built, { recursive: true, force: true }));

it('lowers the built-in functions from the built package as from the sources', () => {
  // A folder as the built package is: package.json, dist with JavaScript, and the sources that it lowers.
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
  for (const folder of ['dsl', 'codegen', 'scripts']) {
    for (const name of readdirSync(packagePath(folder), { recursive: true, encoding: 'utf8' })) {
      if (!name.endsWith('.ts')) continue;
      const { outputText } = ts.transpileModule(readFileSync(packagePath(folder, name), 'utf8'), { compilerOptions });
      const file = join(built, 'dist', folder, name.replace(/ts$/, 'js'));
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, outputText);
    }
  }
  for (const name of ['package.json', 'dsl', 'templates']) symlinkSync(join(packageRoot, name), join(built, name));
  const script = "import { lowerBuiltins } from './dist/scripts/lowerBuiltins.js'; console.log(await lowerBuiltins());";
  const text = execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: built, encoding: 'utf8' });
  expect(text.trim()).toBe(readFileSync(packagePath('generated', 'device-functions.json'), 'utf8').trim());
});
