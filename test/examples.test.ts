import { copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { packagePath } from '../codegen/packageRoot.js';
import { bundle } from './browser/bundle.js';
import { collect, openProject } from './examples/collect.js';
import { browserBundle, browserEntry, typeErrors, writeModules } from './examples/modules.js';
import { config } from './examples/values.js';
import { buildFakes } from './runtime/cuda/fake.js';

const project = openProject();
const { examples, missing } = collect(project);

const folder = packagePath('.cache', 'examples', String(process.pid));
mkdirSync(folder, { recursive: true });
writeFileSync(join(folder, 'browser.d.ts'), "export * from '../../../runtime/browser.js';\n");
const files = writeModules(project, examples, folder);

const own = process.cwd();
let built = '';
beforeAll(async () => {
  writeFileSync(join(folder, browserBundle), (await bundle(packagePath(browserEntry))).text);
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  copyFileSync(packagePath('examples', 'my-codec.ts'), join(folder, 'my-codec.ts'));
  copyFileSync(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'), join(folder, 'cache.safetensors'));
  process.chdir(folder);
  // Examples of CudaDevice run over the fake driver; with a GPU they would not be the same everywhere.
  const { libcuda, libnvrtc, folder: fakes } = await buildFakes();
  built = fakes;
  vi.stubEnv('KVFORGE_LIBCUDA', libcuda);
  vi.stubEnv('KVFORGE_LIBNVRTC', libnvrtc);
  const { navigator } = await import('./examples/deviceValues.js');
  vi.stubGlobal('navigator', navigator);
});
afterAll(async () => {
  vi.unstubAllGlobals();
  vi.unstubAllEnvs();
  process.chdir(own);
  rmSync(folder, { recursive: true });
  rmSync(built, { recursive: true, force: true });
  await (await import('./examples/deviceValues.js')).device.close();
});

test('every public function has an example', () => expect(missing).toEqual([]));

test('examples are well typed', () => expect(typeErrors(project, files)).toEqual([]));

describe('the example runs of', () => {
  for (const [index, { name, at }] of examples.entries()) {
    test(`${name}, ${at}`, () => import(/* @vite-ignore */ files[index]!));
  }
});
