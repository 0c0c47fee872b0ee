/**
 * Lowers TypeScript to the intermediate form. ts-morph is imported when the first function is lowered, so that a
 * program that only runs built-in codecs never loads a TypeScript compiler.
 */
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import type { FunctionDeclaration, Node, Project, SourceFile } from 'ts-morph';
import { KvforgeError } from '../../dsl/errors.js';
import { builtinsFile } from '../builtins.js';
import type { FunctionIr } from '../ir.js';
import { Context, type Header, type Session } from './context.js';
import { checkWrites, orderByCalls } from './effects.js';
import { labelOf, type Morph } from './files.js';
import { isDevice, lowerFunction, type Opened, openFunction } from './function.js';

interface Tools {
  readonly morph: Morph;
  readonly project: Project;
  /** What user files may import from kvforge besides the device library; none while the package itself is built. */
  readonly builtins: readonly FunctionIr[];
}

async function openProject(): Promise<Tools> {
  const stored = existsSync(builtinsFile) ? await readFile(builtinsFile, 'utf8') : '[]';
  const morph = await import('ts-morph');
  const project = new morph.Project({ skipAddingFilesFromTsConfig: true, compilerOptions: { noLib: true, types: [] } });
  return { morph, project, builtins: JSON.parse(stored) as FunctionIr[] };
}

/**
 * Every device function of the files and of those they call, callee first.
 *
 * @example
 * const functions = await lowerFiles(['my-codec.ts']);
 * functions.map(({ name }) => name); // ['largestMagnitude', 'uniformCode', 'levelOf']
 */
export async function lowerFiles(paths: readonly string[]): Promise<FunctionIr[]> {
  for (const path of paths) {
    if (existsSync(path)) continue;
    const hint = `Check the path; it is read from ${process.cwd()}.`;
    throw new KvforgeError('lowering', { at: path, expected: 'a TypeScript file', received: 'no such file', hint });
  }
  const tools = await openProject();
  const files = paths.map((path) => tools.project.addSourceFileAtPath(resolve(path)));
  return lowerSources(tools, files, labelOf);
}

/**
 * As `lowerFiles`, for text that need not be on disk; `fileName` is what messages call it.
 *
 * @example
 * const text = `import type { f32 } from 'kvforge';
 * export function half(x: f32): f32 { 'device'; return x * 0.5; }`;
 * (await lowerText(text))[0]!.name; // 'half'
 */
export async function lowerText(text: string, fileName = 'device.ts'): Promise<FunctionIr[]> {
  const tools = await openProject();
  const file = tools.project.createSourceFile(resolve(fileName), text, { overwrite: true });
  const label = (path: string): string => (path === file.getFilePath() ? fileName : labelOf(path));
  return lowerSources(tools, [file], label);
}

function lowerSources(tools: Tools, files: readonly SourceFile[], label: (path: string) => string): FunctionIr[] {
  const { morph, project, builtins } = tools;
  for (const file of files) checkFile(morph, project, file, label);
  const opened = new Map<FunctionDeclaration, Opened>();
  const open = (session: Session, declaration: FunctionDeclaration): Header => {
    const known = opened.get(declaration) ?? openFunction(session, declaration);
    opened.set(declaration, known);
    return known.header;
  };
  const session: Session = {
    morph,
    project,
    labelOf: label,
    builtins: new Map(builtins.map((one) => [one.name, one])),
    require(declaration: FunctionDeclaration, from: Node): Header {
      if (isDevice(declaration)) return open(session, declaration);
      const name = declaration.getName() ?? 'it';
      const hint = `Make 'device' the first statement of ${name}.`;
      return new Context(session, declaration).fail(from, 'a device function', `${name}, a plain function`, hint);
    },
  };
  for (const file of files) {
    for (const declaration of file.getFunctions().filter(isDevice)) open(session, declaration);
  }
  const lowered: FunctionIr[] = [];
  // A Map iterates over what is added meanwhile: the functions that the first ones call.
  for (const one of opened.values()) lowered.push(lowerFunction(one));
  checkNames(lowered);
  const ordered = orderByCalls(lowered);
  checkWrites(builtins, ordered);
  return ordered;
}

function checkFile(morph: Morph, project: Project, file: SourceFile, label: (path: string) => string): void {
  const at = label(file.getFilePath());
  const [fault] = project.getProgram().getSyntacticDiagnostics(file);
  if (fault) {
    const { line, column } = file.getLineAndColumnAtPos(fault.getStart());
    const message = morph.ts.flattenDiagnosticMessageText(fault.compilerObject.messageText, ' ').replace(/\.$/, '');
    const received = `a syntax error (${message})`;
    const hint = 'Fix it; your editor marks the same place.';
    throw new KvforgeError('lowering', { at: `${at}:${line}:${column}`, expected: 'TypeScript', received, hint });
  }
  if (file.getFunctions().some(isDevice)) return;
  const hint = "Write top-level functions whose first statement is 'device';.";
  throw new KvforgeError('lowering', { at, expected: 'at least one device function', received: 'none', hint });
}

function checkNames(functions: readonly FunctionIr[]): void {
  const seen = new Map<string, FunctionIr>();
  for (const one of functions) {
    const first = seen.get(one.name);
    if (first) {
      const at = `${one.file}:${one.position.line}:${one.position.column}`;
      const received = `${one.name}, which ${first.file}:${first.position.line} declares too`;
      throw new KvforgeError('lowering', {
        at,
        expected: 'device functions with distinct names',
        received,
        hint: 'Rename one of them.',
      });
    }
    seen.set(one.name, one);
  }
}
