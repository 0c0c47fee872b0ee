import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { publint } from 'publint';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { packagePath, packageRoot } from '../codegen/packageRoot.js';

interface Manifest {
  readonly scripts: Readonly<Record<string, string>>;
  readonly exports: Readonly<Record<string, { readonly types: string; readonly default: string }>>;
}

const activations = 'test/fixtures/smollm2-135m-kv.safetensors';

describe('the package', () => {
  const manifest = JSON.parse(readFileSync(packagePath('package.json'), 'utf8')) as Manifest;
  let tarball: string;
  let names: readonly string[];
  const folder = mkdtempSync(join(tmpdir(), 'kvforge-package-'));
  afterAll(() => rmSync(folder, { recursive: true }));
  beforeAll(() => {
    // What `npm ci` built is what is packed: building again would only repeat it.
    const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', folder];
    const [packed] = JSON.parse(execFileSync('npm', args, { cwd: packageRoot, encoding: 'utf8' })) as [
      { filename: string; files: { path: string }[] },
    ];
    tarball = join(folder, packed.filename);
    names = packed.files.map(({ path }) => path);
  });

  it('is at most 3 MB beside the recorded activations', () => {
    expect(names).toContain(activations);
    // Activations hardly compress; gzip alone says how much of the package they are.
    const alone = execFileSync('gzip', ['-c', packagePath(activations)], { maxBuffer: 2 ** 26 }).byteLength;
    const rest = statSync(tarball).size - alone;
    console.info(`package: ${(rest / 1e6).toFixed(2)} MB beside ${(alone / 1e6).toFixed(2)} MB of activations`);
    expect(rest).toBeLessThanOrEqual(3e6);
  });

  it('runs nothing when it is installed', () => {
    expect(Object.keys(manifest.scripts).filter((name) => /^(pre|post)?install$/.test(name))).toEqual([]);
    expect(existsSync(packagePath('binding.gyp'))).toBe(false);
  });

  it('holds the types and the code of every entry', () => {
    for (const { types, default: code } of Object.values(manifest.exports)) {
      expect(names).toContain(types.slice(2));
      expect(names).toContain(code.slice(2));
    }
  });

  it('holds the whole source of the addon, and nothing that building it leaves', () => {
    const folder = 'runtime/cuda/addon';
    const sources = readdirSync(packagePath(folder)).filter((name) => /\.(cc|h|gyp)$/.test(name));
    const packed = names.filter((name) => name.startsWith(`${folder}/`));
    expect([...packed].sort()).toEqual(sources.map((name) => `${folder}/${name}`).sort());
    expect(names.filter((name) => /(^|\/)(node_modules|build|\.cache)\//.test(name))).toEqual([]);
  });

  it('is clean by publint', async () => {
    const { messages } = await publint({ strict: true, pack: { tarball: readBuffer(tarball) } });
    expect(messages).toEqual([]);
  });

  it('gives its types to every way of resolving modules', () => {
    const attw = packagePath('node_modules', '@arethetypeswrong', 'cli', 'dist', 'index.js');
    const args = [attw, tarball, '--profile', 'esm-only', '--format', 'json'];
    const { analysis } = JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', maxBuffer: 2 ** 26 })) as {
      analysis: { problems: { kind: string; resolutionKind?: string }[] };
    };
    // The profile leaves out what only CommonJS meets; the JSON lists it all the same.
    const relevant = analysis.problems.filter(
      ({ kind, resolutionKind }) => kind !== 'CJSResolvesToESM' && resolutionKind !== 'node10',
    );
    expect(relevant).toEqual([]);
  });
});

function readBuffer(path: string): ArrayBuffer {
  return Uint8Array.from(readFileSync(path)).buffer;
}
