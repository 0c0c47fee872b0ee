import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { calibrateCommand } from '../../cli/calibrate.js';
import { reconstruct } from '../../cli/reconstruct.js';
import type { Tensor } from '../../runtime/safetensors.js';
import { calibrationFolder, tokens } from './calibrationCase.js';
import { quietContext } from './support.js';

function folderWith(change?: Parameters<typeof calibrationFolder>[0]) {
  const { folder, input, config } = calibrationFolder(change);
  const options = { model: config, scheme: 'tilt-fast', out: join(folder, 'narrow.calibration') };
  return { folder, input, options };
}

test('a calibration is written, reported, and taken by reconstruct', async () => {
  const { folder, input, options } = folderWith();
  const { json, text } = await calibrateCommand(quietContext(), [input], options);
  expect(json).toMatchObject({
    scheme: 'tilt-fast',
    texts: [{ name: 'text.safetensors', tokens }],
    layers: [{ layer: 1 }, { layer: 3 }],
    bytes: readFileSync(options.out).length,
  });
  expect(text).toContain('bits of groups');
  const output = join(folder, 'out.safetensors');
  const run = { model: options.model, device: 'emulator', input, output, calibration: options.out };
  const done = await reconstruct(quietContext(), 'tilt-fast', run);
  expect(done.json).toMatchObject({ layers: [{ layer: 1 }, { layer: 3 }] });
  await expect(reconstruct(quietContext(), 'tilt-safe', run)).rejects.toThrow(/calibration parameters: expected /);
});

test.each([
  [
    'no queries',
    (t: Map<string, Tensor>) => t.delete('layers.3.queries'),
    /layers\.3: expected queries, which weigh the keys, got none\./,
  ],
  [
    'a NaN',
    (t: Map<string, Tensor>) => t.get('layers.1.keys')!.bytes.set([0, 0x7e], 100),
    /layers\.1: expected finite keys, got a NaN or an infinity\./,
  ],
])('activations with %s are refused before the work', async (_, change, message) => {
  const { input, options } = folderWith((tensors) => void change(tensors));
  await expect(calibrateCommand(quietContext(), [input], options)).rejects.toThrow(message);
});

test('a scheme of another family is refused', async () => {
  const { input, options } = folderWith();
  await expect(calibrateCommand(quietContext(), [input], { ...options, scheme: 'shard' })).rejects.toThrow(
    '--scheme: expected a scheme with tile-rotated keys, got shard.',
  );
});

test('a calibration that was cut short is refused by its name', async () => {
  const { folder, input, options } = folderWith();
  await calibrateCommand(quietContext(), [input], options);
  writeFileSync(options.out, readFileSync(options.out).subarray(0, -1));
  const output = join(folder, 'out.safetensors');
  const run = { model: options.model, device: 'emulator', input, output, calibration: options.out };
  await expect(reconstruct(quietContext(), 'tilt-fast', run)).rejects.toThrow(
    /narrow\.calibration: safetensors tensor "layers\.3\.widths": expected data within the \d+ bytes of the file, got an end at \d+\./,
  );
});
