import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize, relative } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packagePath, packageRoot } from '../codegen/packageRoot.js';

/** Every source file of a folder, relative to the package. */
function sources(folder: string): string[] {
  return readdirSync(packagePath(folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
    .map((entry) => relative(packageRoot, join(entry.parentPath, entry.name)));
}

/** What a file imports at run time (types are erased): package names, and paths relative to the package. */
function imports(file: string): string[] {
  const text = readFileSync(packagePath(file), 'utf8');
  const found = [
    ...text.matchAll(/^(?:import|export)\s(?!type\s)[^;]*?from\s+'([^']+)';/gm),
    ...text.matchAll(/import\('([^']+)'\)/g),
  ];
  return found.map(([, name]) => (name!.startsWith('.') ? normalize(join(dirname(file), name!)) : name!));
}

const layers = ['dsl', 'codegen', 'runtime', 'cli'] as const;

describe('the structure', () => {
  it.each(layers)('lets imports of %s point only towards the description', (layer) => {
    const above = layers.slice(layers.indexOf(layer) + 1);
    const wrong = sources(layer).flatMap((file) =>
      imports(file)
        .filter((name) => above.some((other) => name.startsWith(`${other}/`)))
        .map((name) => `${file} -> ${name}`),
    );
    expect(wrong).toEqual([]);
  });

  it('keeps the description free of Node', () => {
    const wrong = sources('dsl').flatMap((file) =>
      imports(file)
        .filter((name) => name.startsWith('node:'))
        .map((name) => `${file} -> ${name}`),
    );
    expect(wrong).toEqual([]);
  });

  it('lets the reference see no code that it judges', () => {
    const judged = /^(dsl\/(codecs|stages|packing|allocateBits|random)|codegen\/|templates\/)/;
    const wrong = sources('runtime/reference').flatMap((file) =>
      imports(file)
        .filter((name) => judged.test(name))
        .map((name) => `${file} -> ${name}`),
    );
    expect(wrong).toEqual([]);
  });

  it('never names a codec in a template', () => {
    const codecs = readdirSync(packagePath('dsl', 'codecs')).map((name) => name.replace('.ts', ''));
    const wrong = readdirSync(packagePath('templates'), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.hbs'))
      .flatMap((name) => {
        const text = readFileSync(packagePath('templates', name), 'utf8');
        // `hadamard`, `jacobi` and `outliers` are also what the schedules themselves carry out, `uniform` is a distribution's.
        return codecs
          .filter(
            (codec) =>
              !['hadamard', 'jacobi', 'outliers', 'uniform'].includes(codec) && new RegExp(`\\b${codec}\\b`).test(text),
          )
          .map((codec) => `${name}: ${codec}`);
      });
    expect(wrong).toEqual([]);
  });

  it('speaks of the project alone', () => {
    const files = execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: packageRoot, encoding: 'utf8' })
      .trim()
      .split('\n');
    const elsewhere = new RegExp(['\\.\\./sha', 'red|/wo', 'rk/'].join(''));
    const wrong = files.filter(
      (file) =>
        existsSync(packagePath(file)) &&
        /\.(ts|md|hbs|json|h|cc|cuh|mts)$|run$/.test(file) &&
        elsewhere.test(readFileSync(packagePath(file), 'utf8')),
    );
    expect(wrong).toEqual([]);
  });
});
