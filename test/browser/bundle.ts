import { join } from 'node:path';
import { build, type Plugin } from 'esbuild';
import { packageRoot as root } from '../../codegen/packageRoot.js';
import { browserAssets } from '../../scripts/bundleAssets.js';

/** A bundle for browsers: its text, and the modules it was made from. */
export interface Bundle {
  readonly text: string;
  readonly modules: readonly string[];
}

/** `kvforge verify` is Node's; all that it needs of Node is `generate`, and a browser has its own. */
const browserGenerate: Plugin = {
  name: 'browser-generate',
  setup({ onResolve }) {
    onResolve({ filter: /\/codegen\/generate\.js$/ }, () => ({ path: join(root, 'runtime', 'browser.ts') }));
  },
};

/** The module that a build writes into `dist`, made from the sources as they are now. */
const assets: Plugin = {
  name: 'browser-assets',
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /\/browserAssets\.js$/ }, ({ path }) => ({ path, namespace: 'browser-assets' }));
    onLoad({ filter: /.*/, namespace: 'browser-assets' }, async () => ({ contents: await browserAssets() }));
  },
};

/**
 * Bundles a module of this package as an application would for production: minified, for browsers. A module of Node in
 * it is an error.
 */
export async function bundle(entry: string): Promise<Bundle> {
  const { outputFiles, metafile } = await build({
    absWorkingDir: root,
    entryPoints: [entry],
    bundle: true,
    minify: true,
    platform: 'browser',
    format: 'esm',
    target: 'es2022',
    write: false,
    metafile: true,
    logLevel: 'silent',
    plugins: [assets, browserGenerate],
  });
  return { text: outputFiles[0]!.text, modules: Object.keys(metafile.inputs) };
}
