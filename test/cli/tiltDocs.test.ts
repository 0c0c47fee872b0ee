import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { parseSafetensors } from '../../runtime/safetensors.js';
import { calibrationFolder } from './calibrationCase.js';
import { cli } from './support.js';

const document = readFileSync(packagePath('docs', 'tilt.md'), 'utf8');
const [, section = ''] = document.split('\n## Calibration\n');
const blockOf = (language: string) => new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``).exec(section)![1]!;

/** Runs the commands in a folder where the files that they read are. */
async function runCommands() {
  const { folder, input, config, ...rest } = calibrationFolder();
  for (const name of ['a', 'b', 'in']) copyFileSync(input, join(folder, `${name}.safetensors`));
  copyFileSync(config, join(folder, 'config.json'));
  const commands = blockOf('sh').trim().split('\n');
  expect(commands.map((command) => command.split(' ')[2])).toEqual(['calibrate', 'reconstruct']);
  for (const command of commands) {
    const words = command.split(' ').slice(2);
    const run = await cli(...words.map((word) => (/\.\w+$/.test(word) ? join(folder, word) : word)));
    expect(run).toMatchObject({ code: 0 });
  }
  return { folder, ...rest };
}

test('the commands of docs/tilt.md run in their order, and its code takes what they wrote', async () => {
  const { folder, layers, tokens } = await runCommands();
  const { tensors } = parseSafetensors(readFileSync(join(folder, 'out.safetensors')));
  expect([...tensors.keys()].sort()).toEqual(layers.flatMap((n) => [`layers.${n}.keys`, `layers.${n}.values`]).sort());

  // Within the package, so that its imports are found.
  const own = packagePath('.cache', `tilt-docs-${process.pid}`);
  mkdirSync(own, { recursive: true });
  onTestFinished(() => rmSync(own, { recursive: true }));
  const source = (...path: string[]) => JSON.stringify(pathToFileURL(packagePath(...path)).href);
  const shown = blockOf('ts')
    .replace("'kvforge'", source('dsl', 'index.ts'))
    .replace("'kvforge/runtime'", source('runtime', 'index.ts'))
    .replace("'tilt.calibration'", JSON.stringify(join(folder, 'tilt.calibration')));
  const around = [
    "import { readFile } from 'node:fs/promises';",
    `import { EmulatorDevice, KvCache, LoadedKernels } from ${source('runtime', 'index.ts')};`,
    `import { defaultTargets, generate } from ${source('codegen', 'index.ts')};`,
    `import { model, promptOf } from ${source('test', 'cli', 'calibrationCase.ts')};`,
    `const [layer, tokens] = [${layers[1]}, ${tokens}];`,
    'const { keys, values } = promptOf(layer);',
    "const device = await EmulatorDevice.open({ checks: 'none' });",
    'const kernels = await LoadedKernels.load(device, await generate(tiltFast, model, defaultTargets.cuda));',
    'const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0, layer });',
    shown,
    'export const { keys: decoded } = await cache.decompress(0);',
    'await device.close();',
  ];
  writeFileSync(join(own, 'shown.ts'), around.join('\n'));
  const { decoded } = (await import(/* @vite-ignore */ pathToFileURL(join(own, 'shown.ts')).href)) as {
    decoded: Uint16Array;
  };
  // By the same calibration and kernels, so the same numbers as the second command wrote.
  const written = tensors.get(`layers.${layers[1]}.keys`)!.bytes;
  expect(new Uint8Array(decoded.buffer, decoded.byteOffset, decoded.byteLength)).toEqual(Uint8Array.from(written));
});

test('the README points to it', () => {
  expect(readFileSync(packagePath('README.md'), 'utf8')).toContain('[calibrated](docs/tilt.md#calibration)');
  expect(section).not.toBe('');
});
