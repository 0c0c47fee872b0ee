/** Which declaration a top-level name of a file stands for, through imports and re-exports. */
import { existsSync } from 'node:fs';
import { basename, dirname, join, relative, resolve, sep } from 'node:path';
import type {
  FunctionDeclaration,
  Node,
  Project,
  SourceFile,
  TypeAliasDeclaration,
  VariableDeclaration,
} from 'ts-morph';
import { packagePath } from '../packageRoot.js';

export type Morph = typeof import('ts-morph');

export type Entity =
  | { readonly kind: 'function'; readonly declaration: FunctionDeclaration }
  | { readonly kind: 'variable'; readonly declaration: VariableDeclaration }
  | { readonly kind: 'type'; readonly declaration: TypeAliasDeclaration }
  | { readonly kind: 'library'; readonly name: string }
  | { readonly kind: 'unresolved'; readonly specifier: string };

/** The device library as sources name it, and as the built package does. */
const libraryStems: readonly string[] = [packagePath('dsl', 'device'), packagePath('dist', 'dsl', 'device')];

function stemOf(path: string): string {
  return path.replace(/\.(d\.ts|[cm]?[jt]s)$/, '');
}

function isLibrary(specifier: string, from: string): boolean {
  if (specifier === 'kvforge' || specifier.startsWith('kvforge/')) return true;
  if (!specifier.startsWith('.')) return false;
  const stem = stemOf(resolve(dirname(from), specifier));
  if (libraryStems.includes(stem)) return true;
  // Text that lives outside the package still writes '../device.js' as the built-in codecs do.
  return basename(stem) === 'device' && !existsSync(`${stem}.ts`);
}

function findModule(project: Project, specifier: string, from: string): SourceFile | undefined {
  if (!specifier.startsWith('.')) return undefined;
  const stem = stemOf(resolve(dirname(from), specifier));
  for (const path of [`${stem}.ts`, join(stem, 'index.ts')]) {
    const file = project.addSourceFileAtPathIfExists(path);
    if (file) return file;
  }
  return undefined;
}

function through(project: Project, specifier: string, from: SourceFile, name: string): Entity {
  if (isLibrary(specifier, from.getFilePath())) return { kind: 'library', name };
  const module = findModule(project, specifier, from.getFilePath());
  const entity = module && (findEntity(project, module, name) ?? findReexport(project, module, name));
  return entity ?? { kind: 'unresolved', specifier };
}

export function findEntity(project: Project, file: SourceFile, name: string): Entity | undefined {
  const declaredFunction = file.getFunction(name);
  if (declaredFunction) return { kind: 'function', declaration: declaredFunction };
  const variable = file.getVariableDeclaration(name);
  if (variable) return { kind: 'variable', declaration: variable };
  const alias = file.getTypeAlias(name);
  if (alias) return { kind: 'type', declaration: alias };
  for (const declaration of file.getImportDeclarations()) {
    for (const specifier of declaration.getNamedImports()) {
      if ((specifier.getAliasNode()?.getText() ?? specifier.getName()) !== name) continue;
      return through(project, declaration.getModuleSpecifierValue(), file, specifier.getName());
    }
  }
  return undefined;
}

function findReexport(project: Project, file: SourceFile, name: string): Entity | undefined {
  for (const declaration of file.getExportDeclarations()) {
    const specifier = declaration.getModuleSpecifierValue();
    if (specifier === undefined) continue;
    const named = declaration.getNamedExports();
    for (const entry of named) {
      if ((entry.getAliasNode()?.getText() ?? entry.getName()) !== name) continue;
      return through(project, specifier, file, entry.getName());
    }
    if (named.length > 0) continue;
    const entity = through(project, specifier, file, name);
    if (entity.kind !== 'unresolved') return entity;
  }
  return undefined;
}

/** The path within the package that a file belongs to, if any. */
export function packageLabel(path: string): string | undefined {
  for (let folder = dirname(path); folder !== dirname(folder); folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return relative(folder, path).split(sep).join('/');
  }
  return undefined;
}

/** The path messages show: relative to the nearest package.json, else to where we run. */
export function labelOf(path: string): string {
  const inPackage = packageLabel(path);
  if (inPackage !== undefined) return inPackage;
  const fromHere = relative(process.cwd(), path);
  return (fromHere.startsWith('..') ? path : fromHere).split(sep).join('/');
}

/** A piece of source short enough for a message. */
export function excerpt(node: Node): string {
  const text = node.getText().replace(/\s+/g, ' ');
  return text.length > 48 ? `${text.slice(0, 45)}...` : text;
}
