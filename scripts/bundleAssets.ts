import { writeFile } from 'node:fs/promises';
import Handlebars from 'handlebars';
import { readBuiltins } from '../codegen/builtins.js';
import { packagePath } from '../codegen/packageRoot.js';
import { readTemplates, templateOptions } from '../codegen/templates.js';

/**
 * What a browser generates kernels from, as the text of the module `codegen/browserAssets.js`: the WGSL templates,
 * precompiled so that neither a compiler nor `new Function` is needed, and the lowered device functions.
 */
export async function browserAssets(): Promise<string> {
  const [{ names, partials, schedules }, builtins] = await Promise.all([readTemplates('wgsl'), readBuiltins()]);
  const precompiled = (texts: ReadonlyMap<string, string>) =>
    [...texts].map(
      ([name, text]) => `${JSON.stringify(name)}: ${String(Handlebars.precompile(text, templateOptions))},`,
    );
  return `// Written by scripts/bundleAssets.ts from templates/wgsl and generated/device-functions.json.
export const builtins = ${JSON.stringify(builtins)};
export const names = ${JSON.stringify([...names])};
export const partials = {\n${precompiled(partials).join('\n')}\n};
export const schedules = {\n${precompiled(schedules).join('\n')}\n};
`;
}

if (process.argv[1]?.includes('bundleAssets')) {
  await writeFile(packagePath('dist', 'codegen', 'browserAssets.js'), await browserAssets());
}
