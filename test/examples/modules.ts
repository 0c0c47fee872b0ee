import { writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { Node, type Project } from 'ts-morph';
import { packagePath, packageRoot } from '../../codegen/packageRoot.js';
import type { Example } from './collect.js';
import { freeNames, withChecks } from './grammar.js';

/** Where names are looked for after the example's own entry, in this order. */
const sources = [
  'dsl/index.ts',
  'codegen/index.ts',
  'runtime/index.ts',
  'test/examples/values.ts',
  'test/examples/deviceValues.ts',
  'test/examples/calibrationValues.ts',
];

/** The source of a browser's entry has no assets; `examples.test.ts` bundles one that does into the modules' folder. */
export const browserEntry = 'runtime/browser.ts';
export const browserBundle = 'browser.js';

/** Writes every example as a module into a folder of the package, and names the files. */
export function writeModules(project: Project, examples: readonly Example[], folder: string): string[] {
  const exportsOf = new Map<string, ReadonlyMap<string, boolean>>();
  const exported = (source: string) => {
    const known = exportsOf.get(source) ?? exportedNames(project, source);
    exportsOf.set(source, known);
    return known;
  };
  const specifier = (source: string) => {
    if (source === browserEntry) return `./${browserBundle}`;
    return relative(folder, packagePath(source)).replace(/\.ts$/, '.js');
  };
  return examples.map(({ entry, at, text }, index) => {
    const body = withChecks(text).replace(
      /'kvforge(\/\w+)?'/g,
      (_, part: string = '') => `'${specifier(entryOf(part))}'`,
    );
    const free = new Set(freeNames(body));
    const imports = [];
    if (free.delete('cache')) {
      free.add('freshCache');
      imports.push('const cache = await freshCache();');
    }
    for (const source of new Set([entry, ...sources])) {
      const names = [...exported(source)].filter(([name]) => free.delete(name));
      if (names.length === 0) continue;
      const list = names.map(([name, isType]) => (isType ? `type ${name}` : name)).join(', ');
      imports.unshift(`import { ${list} } from '${specifier(source)}';`);
    }
    const file = join(folder, `example-${index}.ts`);
    writeFileSync(file, `// ${at}\n${imports.join('\n')}\n${body}\nexport {};\n`);
    return file;
  });
}

function entryOf(part: string): string {
  return { '': 'dsl/index.ts', '/codegen': 'codegen/index.ts', '/runtime': 'runtime/index.ts' }[part] ?? browserEntry;
}

/** What a source file exports, and of each whether it is a type alone. */
function exportedNames(project: Project, source: string): ReadonlyMap<string, boolean> {
  const declared = project.addSourceFileAtPath(packagePath(source)).getExportedDeclarations();
  return new Map(
    [...declared].map(([name, nodes]) => [
      name,
      nodes.every((node) => Node.isInterfaceDeclaration(node) || Node.isTypeAliasDeclaration(node)),
    ]),
  );
}

/** What the compiler says of the modules, as `file:line: message`. */
export function typeErrors(project: Project, files: readonly string[]): string[] {
  const added = files.map((file) => project.addSourceFileAtPath(file));
  return added.flatMap((file) =>
    file.getPreEmitDiagnostics().map((diagnostic) => {
      const message = diagnostic.getMessageText();
      const text = typeof message === 'string' ? message : message.getMessageText();
      return `${relative(packageRoot, file.getFilePath())}:${diagnostic.getLineNumber()} ${file.getLeadingCommentRanges()[0]?.getText()}: ${text}`;
    }),
  );
}
