import { afterAll, beforeAll, expect, test } from 'vitest';
import { defaultTargets, type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Device } from '../../runtime/device.js';
import { EmulatorDevice } from '../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { generated, model, scheme } from './cacheCase.js';

let device: Device;
let kernels: GeneratedKernels;
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
  kernels = await generated(device);
});
afterAll(() => device?.close());

/** Code and text of the error that a call in plain JavaScript ends with. */
function refusal(call: unknown, ...args: readonly unknown[]): Promise<string> {
  return (call as (...args: readonly unknown[]) => Promise<unknown>)(...args).then(
    () => 'no error',
    (error: Error & { code?: string }) => `${error.code}: ${error.message}`,
  );
}

test('kernels are not loaded with arguments that are none', async () => {
  const load = (...args: readonly unknown[]) => refusal(LoadedKernels.load.bind(LoadedKernels), ...args);
  const order = 'Call it as LoadedKernels.load(device, await generate(...)).';
  expect(await load()).toBe(`wrong-use: device: expected an open device, got undefined. ${order}`);
  expect(await load(EmulatorDevice.open, kernels)).toBe(
    `wrong-use: device: expected an open device, got a function. ${order}`,
  );
  expect(await load(device)).toBe(`wrong-use: generated: expected kernels that generate gave, got undefined. ${order}`);
  expect(await load(device, Promise.resolve(kernels))).toBe(
    `wrong-use: generated: expected kernels that generate gave, got a promise, which was not awaited. ${order}`,
  );
  expect(await load(kernels, device)).toBe(
    'wrong-use: device: expected an open device, got generated kernels. The device comes first.',
  );
  expect(await load(device, kernels, 'attend')).toBe(
    'wrong-use: entries: expected a list of entries, got "attend". Leave it out to load all kernels.',
  );
  const known = kernels.manifest.kernels.map(({ entry }) => entry).join(', ');
  expect(await load(device, kernels, ['attend', 'nope'])).toBe(
    `wrong-use: entries[1]: expected one of ${known}, got "nope". Leave the list out to load all kernels.`,
  );
  expect(await load(device, await generate(scheme, model, defaultTargets.wgsl))).toBe(
    `wrong-use: ${device.description}: expected kernels in cuda, got kernels in wgsl. Generate with target cuda.`,
  );
});

test('kernels are not generated from arguments that are none', async () => {
  const target = 'Pass defaultTargets.cuda or defaultTargets.wgsl.';
  expect(await refusal(generate)).toBe('invalid-scheme: scheme: expected an object, got undefined. Pass a descriptor.');
  expect(await refusal(generate, scheme)).toBe(
    "wrong-use: model: expected a model, got undefined. Pass presetModel('llama-3.1-8b'), or modelFrom(config).",
  );
  expect(await refusal(generate, scheme, 'llama-3.1-8b', defaultTargets.cuda)).toBe(
    `wrong-use: model: expected a model, got "llama-3.1-8b". Pass presetModel('llama-3.1-8b'), or modelFrom(config).`,
  );
  expect(await refusal(generate, scheme, model)).toBe(`wrong-use: target: expected a target, got undefined. ${target}`);
  expect(await refusal(generate, scheme, model, 'cuda')).toBe(
    `wrong-use: target: expected a target, got "cuda". ${target}`,
  );
  expect(await refusal(generate, scheme, model, [defaultTargets.cuda])).toBe(
    `wrong-use: target: expected a target, got a list. ${target}`,
  );
  expect(await refusal(generate, scheme, model, defaultTargets.cuda, 'attend')).toBe(
    'wrong-use: choice: expected tunables by stage name, got "attend". Leave it out for the defaults.',
  );
});
