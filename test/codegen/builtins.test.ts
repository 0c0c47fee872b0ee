import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, expect, it } from 'vitest';
import { diskAssets } from '../../codegen/assetsDisk.js';
import { builtinExports } from '../../codegen/builtinExports.js';
import { readBuiltins } from '../../codegen/builtins.js';
import { defaultTargets, generate, manifestText } from '../../codegen/generate.js';
import { functionLibrary } from '../../codegen/library.js';
import { packagePath } from '../../codegen/packageRoot.js';
import {
  defineScheme,
  type f32,
  type KvforgeError,
  lloydMax,
  presetModel,
  type ScalarCodec,
  shard,
} from '../../dsl/index.js';

const folder = mkdtempSync(join(tmpdir(), 'kvforge-builtins-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const smol = presetModel('smollm2-135m');
const builtin = lloydMax({ bits: 8 });

function schemeWith(device: Partial<ScalarCodec['device']>, source?: string) {
  const stream = { ...builtin, device: { ...builtin.device, ...device }, ...(source === undefined ? {} : { source }) };
  return defineScheme({ ...shard, name: 'mine', stream });
}

async function outcome(...parts: Parameters<typeof schemeWith>): Promise<string> {
  return functionLibrary(schemeWith(...parts), diskAssets).then(
    () => 'ACCEPTED',
    (error: KvforgeError) => `${error.code}: ${error.message}`,
  );
}

function write(name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return pathToFileURL(file).href;
}

// Not the built-in one, but of its name.
function vectorNorm(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return maxAbs;
}
function ownScale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return maxAbs;
}
const ownText = `import { type f32 } from 'kvforge';
import { helper } from './helper.js';
export function ownScale(_sumOfSquares: f32, maxAbs: f32): f32 {
  'device';
  return helper(maxAbs);
}`;
const helperText = `import { type f32 } from 'kvforge';
export function helper(x: f32): f32 {
  'device';
  return x;
}`;

it('knows every lowered function that its module exports', async () => {
  for (const { file, name } of await readBuiltins()) {
    const module = (await import(pathToFileURL(packagePath(file)).href)) as Record<string, unknown>;
    if (name in module) expect(builtinExports.get(name), `${name} of ${file}`).toBe(module[name]);
  }
});

it('takes a function without source only if it is the built-in one itself', async () => {
  expect(await outcome({})).toBe('ACCEPTED');
  expect(await outcome({ scale: vectorNorm })).toBe(
    'invalid-codec: stream.device.scale: expected a built-in device function, as the codec names no source, got another function named vectorNorm. Add source: import.meta.url.',
  );
  expect(await outcome({ scale: ownScale })).toBe(
    'invalid-codec: stream.device.scale: expected a built-in device function, as the codec names no source, got ownScale. Add source: import.meta.url.',
  );
});

it('takes a function with source from that file, or a built-in one', async () => {
  write('helper.ts', helperText);
  const source = write('own.ts', ownText);
  expect(await outcome({ scale: ownScale }, source)).toBe('ACCEPTED');
  const expected = "a function marked 'device' of the file that source names, or a built-in one";
  const hint = 'Declare it with `function` at the top level of that file.';
  expect(await outcome({ scale: vectorNorm }, source)).toBe(
    `invalid-codec: stream.device.scale: expected ${expected}, got vectorNorm. ${hint}`,
  );
  const helper = { helper: (_: f32, maxAbs: f32): f32 => maxAbs }.helper;
  expect(await outcome({ scale: helper }, source)).toBe(
    `invalid-codec: stream.device.scale: expected ${expected}, got helper. ${hint}`,
  );
});

it('says nothing of the machine in what it generates', async () => {
  write('helper.ts', helperText);
  const { manifest, files } = await generate(
    schemeWith({ scale: ownScale }, write('own.ts', ownText)),
    smol,
    defaultTargets.wgsl,
  );
  const text = [manifestText(manifest), ...files.values()].join('\n');
  expect(text).toContain('// own.ts:3 ownScale');
  expect(text).not.toMatch(/file:|\/tmp|"source"/);
  expect(text).not.toContain(folder);
});
