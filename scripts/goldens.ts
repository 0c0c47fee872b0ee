import { mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { builtinsFile } from '../codegen/builtins.js';
import { packagePath } from '../codegen/packageRoot.js';
import { presentGoldens, wantedGoldens } from './goldenFiles.js';
import { lowerBuiltins } from './lowerBuiltins.js';

const update = process.argv.includes('--update');
// The lowered codecs come first: everything else is generated from them.
if (update) await writeFile(builtinsFile, await lowerBuiltins());
const [expected, found] = [await wantedGoldens(), await presentGoldens()];
const changed = [...expected].filter(([name, text]) => found.get(name) !== text).map(([name]) => name);
const extra = [...found.keys()].filter((name) => !expected.has(name));
if (update) {
  for (const name of changed) {
    const file = packagePath('generated', name);
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, expected.get(name)!);
  }
  for (const name of extra) await rm(packagePath('generated', name));
}
for (const name of changed) console.log(`${found.has(name) ? 'differs' : 'missing'}  ${name}`);
for (const name of extra) console.log(`extra    ${name}`);
console.log(`${expected.size} files, ${changed.length} changed, ${extra.length} extra${update ? ', written' : ''}`);
if (!update && changed.length + extra.length > 0) {
  console.log('Run `npm run goldens -- --update` and review the difference.');
  process.exitCode = 1;
}
