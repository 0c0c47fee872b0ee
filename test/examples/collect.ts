import { relative } from 'node:path';
import {
  type ClassDeclaration,
  type ExportedDeclarations,
  type JSDoc,
  type MethodDeclaration,
  Node,
  Project,
  type SourceFile,
  ts,
} from 'ts-morph';
import { packagePath, packageRoot } from '../../codegen/packageRoot.js';
import { examplesOf } from './grammar.js';

/** What users import from, and the source of it. */
const publicEntries = ['dsl/index.ts', 'codegen/index.ts', 'runtime/index.ts', 'runtime/browser.ts'];

export interface Example {
  /** What it is an example of. */
  readonly name: string;
  /** File and line of that. */
  readonly at: string;
  /** The file whose exports it may use first. */
  readonly entry: string;
  readonly text: string;
}

export interface Collected {
  readonly examples: readonly Example[];
  /** Public functions and methods without one, with their places. */
  readonly missing: readonly string[];
}

export function openProject(): Project {
  const project = new Project({
    tsConfigFilePath: packagePath('tsconfig.json'),
    skipAddingFilesFromTsConfig: true,
    // ts-morph does not ask package.json which files are modules of ECMAScript; here all are.
    compilerOptions: { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler },
  });
  for (const entry of publicEntries) project.addSourceFileAtPath(packagePath(entry));
  return project;
}

/** Every example in the documentation of what the entries export, once, and what is left without. */
export function collect(project: Project, entries: readonly string[] = publicEntries): Collected {
  const found = new Map<Node, Documented>();
  for (const entry of entries) {
    const file = project.getSourceFileOrThrow(packagePath(entry));
    add(found, { name: entry, node: file, entry, docs: fileDocs(file), parts: [] });
    for (const [name, declarations] of file.getExportedDeclarations()) {
      for (const node of declarations) {
        if (!Node.isSourceFile(node)) {
          add(found, documented(name, node, entry));
          continue;
        }
        // A namespace: its functions are for tests, and need no example; those that are there run.
        const own = relative(packageRoot, node.getFilePath());
        for (const [inner, [first]] of node.getExportedDeclarations()) {
          if (first) add(found, { ...documented(inner, first, own), name: `${name}.${inner}`, optional: true });
        }
      }
    }
  }
  const all = [...found.values()];
  return { examples: all.flatMap(examplesFrom), missing: all.flatMap(missingFrom) };
}

/** Text of a comment, and its place. */
interface Doc {
  readonly text: string;
  readonly at: string;
}

/** Something public: a function, or a class with its methods. */
interface Documented {
  readonly name: string;
  readonly node: Node;
  readonly entry: string;
  readonly docs: readonly Doc[];
  /** Public methods of a class, inherited ones too. */
  readonly parts: readonly MethodDeclaration[];
  readonly optional?: boolean;
}

function add(found: Map<Node, Documented>, one: Documented): void {
  if (!found.has(one.node)) found.set(one.node, one);
}

function documented(name: string, node: ExportedDeclarations, entry: string): Documented {
  if (!Node.isClassDeclaration(node)) return { name, node, entry, docs: textsOf(docsOf(node)), parts: [] };
  const classes = [...lineage(node)];
  const methods = classes.flatMap((one) => [...one.getStaticMethods(), ...one.getInstanceMethods()]);
  const parts = methods.filter(
    (method) =>
      method.getScope() === 'public' &&
      !method.getName().startsWith('#') &&
      !docsOf(method).some((doc) => doc.getTags().some((tag) => tag.getTagName() === 'internal')),
  );
  return { name, node, entry, docs: classes.flatMap((one) => textsOf(docsOf(one))), parts };
}

function* lineage(own: ClassDeclaration): Generator<ClassDeclaration> {
  for (let one: ClassDeclaration | undefined = own; one; one = one.getBaseClass()) yield one;
}

function examplesFrom({ name, entry, docs, parts }: Documented): Example[] {
  const each = (of: string, from: readonly Doc[]) =>
    from.flatMap(({ text, at }) => examplesOf(text).map((example) => ({ name: of, at, entry, text: example })));
  return [...each(name, docs), ...parts.flatMap((part) => each(`${name}.${part.getName()}`, textsOf(docsOf(part))))];
}

function missingFrom(one: Documented): string[] {
  const { name, node, parts, optional } = one;
  if (optional || !(isFunction(node) || Node.isClassDeclaration(node))) return [];
  const examples = examplesFrom(one);
  const own = parts.filter((part) => {
    const called = new RegExp(`\\.${part.getName()}\\(`);
    return !examples.some(({ text }) => called.test(text));
  });
  const bare = parts.length === 0 && examples.length === 0;
  return [
    ...(bare ? [`${placeOf(node)}: ${name}`] : []),
    ...own.map((part) => `${placeOf(part)}: ${name}.${part.getName()}`),
  ];
}

function isFunction(node: Node): boolean {
  if (Node.isFunctionDeclaration(node)) return true;
  return Node.isVariableDeclaration(node) && node.getType().getCallSignatures().length > 0;
}

function docsOf(node: Node): readonly JSDoc[] {
  if (Node.isJSDocable(node)) return node.getJsDocs();
  return Node.isVariableDeclaration(node) ? (node.getVariableStatement()?.getJsDocs() ?? []) : [];
}

function textsOf(docs: readonly JSDoc[]): Doc[] {
  return docs.map((doc) => ({ text: doc.getInnerText(), at: placeOf(doc) }));
}

/** The comment that a file begins with, when it describes the file. */
function fileDocs(file: SourceFile): Doc[] {
  const [first] = file.getStatementsWithComments()[0]?.getLeadingCommentRanges() ?? [];
  const text = first?.getText() ?? '';
  if (!text.startsWith('/**')) return [];
  return [{ text: text.slice(3, -2).replace(/^ *\* ?/gm, ''), at: `${relative(packageRoot, file.getFilePath())}:1` }];
}

function placeOf(node: Node): string {
  return `${relative(packageRoot, node.getSourceFile().getFilePath())}:${node.getStartLineNumber()}`;
}
