import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
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
  execFileSync(process.execPath, [
    packagePath('node_modules', 'typescript', 'bin', 'tsc'),
    ...['-p', packagePath('tsconfig.build.json'), '--outDir', join(built, 'dist')],
  ]);
  for (const name of ['package.json', 'dsl', 'templates']) symlinkSync(join(packageRoot, name), join(built, name));
  const script = "import { lowerBuiltins } from './dist/scripts/lowerBuiltins.js'; console.log(await lowerBuiltins());";
  const text = execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: built, encoding: 'utf8' });
  expect(text.trim()).toBe(readFileSync(packagePath('generated', 'device-functions.json'), 'utf8').trim());
});
