import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { builtinsFile } from '../codegen/builtins.js';
import { defaultTargets, generate, manifestText } from '../codegen/generate.js';
import { packagePath } from '../codegen/packageRoot.js';
import { presetModel } from '../dsl/model.js';
import { shard } from '../dsl/schemes/shard.js';
import { lowerBuiltins } from './lowerBuiltins.js';

/** The kernels that are checked in: every change of a template or a codec shows in review as a change of these. */
const goldens = [
  { scheme: shard, model: 'llama-3.1-8b' },
  { scheme: shard, model: 'smollm2-135m' },
] as const;

async function wanted(): Promise<Map<string, string>> {
  const files = new Map([[relative(packagePath('generated'), builtinsFile), await lowerBuiltins()]]);
  for (const { scheme, model } of goldens) {
    for (const target of Object.values(defaultTargets)) {
      const kernels = await generate(scheme, presetModel(model), target);
      const folder = join(scheme.name, model, target.language);
      for (const [name, text] of kernels.files) files.set(join(folder, name), text);
      files.set(join(folder, 'manifest.json'), manifestText(kernels.manifest));
    }
  }
  return files;
}

async function present(): Promise<Map<string, string>> {
  const root = packagePath('generated');
  const entries = await readdir(root, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return new Map(
    await Promise.all(files.map(async (file) => [relative(root, file), await readFile(file, 'utf8')] as const)),
  );
}

const update = process.argv.includes('--update');
// The lowered codecs come first: everything else is generated from them.
if (update) await writeFile(builtinsFile, await lowerBuiltins());
const [expected, found] = [await wanted(), await present()];
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
