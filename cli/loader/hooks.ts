/**
 * Module hooks for a user's scheme file: `kvforge` means the package that is running, wherever the file lies, and
 * TypeScript is turned into JavaScript as the file is loaded. Node runs them in a thread of their own.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import type { InitializeHook, LoadHook, ResolveHook } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface HookData {
  /** Specifier to URL. */
  readonly packages: Readonly<Record<string, string>>;
  /** Folders of this package's own sources, as URLs: whatever runs them loads them. */
  readonly own: readonly string[];
  /** Folder for what was turned into JavaScript, so that the check and the load do it once. */
  readonly cache: string;
}

let data: HookData = { packages: {}, own: [], cache: '' };

export const initialize: InitializeHook<HookData> = (given) => {
  data = given;
};

export const resolve: ResolveHook = async (specifier, context, next) => {
  const own = data.packages[specifier];
  if (own !== undefined) return next(own, context);
  try {
    return await next(specifier, context);
  } catch (error) {
    const url = typescriptBehind(specifier, context.parentURL);
    if (url === undefined) throw error;
    return { url, format: 'module', shortCircuit: true };
  }
};

/** TypeScript names './codec.ts' as './codec.js', or without an ending. */
function typescriptBehind(specifier: string, parent: string | undefined): string | undefined {
  if (!parent?.startsWith('file:') || !/^(\.|\/|file:)/.test(specifier)) return undefined;
  const url = new URL(specifier, parent);
  const stem = url.href.replace(/\.([cm]?)js$/, '.$1ts');
  const candidates = stem === url.href ? [`${stem}.ts`, `${stem}/index.ts`] : [stem];
  return candidates.find((candidate) => existsSync(fileURLToPath(candidate)));
}

export const load: LoadHook = async (url, context, next) => {
  const isTypeScript = /^file:[^?#]*\.[cm]?ts$/.test(url);
  if (!isTypeScript || data.own.some((folder) => url.startsWith(folder))) return next(url, context);
  const file = fileURLToPath(url);
  const text = await readFile(file, 'utf8');
  const kept = join(data.cache, `${createHash('sha256').update(`${url}\n${text}`).digest('hex')}.js`);
  const known = await readFile(kept, 'utf8').catch(() => undefined);
  if (known !== undefined) return { format: 'module', source: known, shortCircuit: true };
  const source = await javascriptOf(file, text);
  // The cache folder may be gone already; the next load then does the work again.
  await writeFile(kept, source).catch(() => {});
  return { format: 'module', source, shortCircuit: true };
};

async function javascriptOf(file: string, text: string): Promise<string> {
  const { ts } = await import('ts-morph');
  const { outputText, diagnostics } = ts.transpileModule(text, {
    fileName: file,
    reportDiagnostics: true,
    compilerOptions: {
      target: ts.ScriptTarget.ES2022,
      module: ts.ModuleKind.ESNext,
      inlineSourceMap: true,
      inlineSources: true,
    },
  });
  const fault = diagnostics?.find(({ category }) => category === ts.DiagnosticCategory.Error);
  if (!fault) return outputText;
  const { line, character } = ts.getLineAndCharacterOfPosition(fault.file!, fault.start ?? 0);
  // A stack with the position is what the reader of this error looks at.
  const error = new SyntaxError(ts.flattenDiagnosticMessageText(fault.messageText, ' '));
  error.stack = `SyntaxError: ${error.message}\n    at ${file}:${line + 1}:${character + 1}`;
  throw error;
}
