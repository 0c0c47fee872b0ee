import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { reportError } from '../../cli/output.js';
import { type VerifyTools, verify } from '../../cli/verify.js';
import { defaultTargets } from '../../codegen/generate.js';
import { presetModel } from '../../dsl/model.js';
import { decompressStage } from '../../dsl/stages/decompress.js';
import type { Device } from '../../runtime/device.js';
import { addToLock } from '../../runtime/tune/lock/file.js';
import { modelHash } from '../../runtime/tune/lock/format.js';
import type { VerifyResult, VerifyScheme } from '../../runtime/verify/index.js';
import { cli, errorOf, quietContext, temporaryFolder } from './support.js';

const options = { model: 'smollm2-135m', device: 'emulator', cases: '12', seed: '7', set: [] };
const passed: VerifyResult = {
  cases: 12,
  failed: 0,
  maxError: 3e-7,
  skipped: 1,
  notes: ['1 not made: prefill'],
  seed: 7,
  failures: [],
};
const failures = [{ case: 4, seed: 1234, what: 'attend', error: 0.25, bar: 2e-3 }];

function stub(result: VerifyResult | Error, name = 'CPU emulator of CUDA') {
  const close = vi.fn(async () => {});
  const verifyScheme = vi.fn(async (..._args: Parameters<VerifyScheme>) => {
    if (result instanceof Error) throw result;
    return result;
  });
  const tools: VerifyTools = {
    open: async () => ({ kind: 'emulator', description: 'a stub', identity: { name }, close }) as unknown as Device,
    verifyScheme: async () => verifyScheme,
  };
  return { tools, close, verifyScheme };
}

test('verify passes cases and seed on, and closes the device', async () => {
  const { tools, close, verifyScheme } = stub(passed);
  const { code, json, text } = await verify(quietContext(), 'shard', options, tools);
  expect(code).toBe(0);
  expect(verifyScheme.mock.calls[0]).toMatchObject([
    { description: 'a stub' },
    { name: 'shard' },
    { name: 'smollm2-135m' },
    { cases: 12, seed: 7 },
  ]);
  expect(json).toMatchObject({ ...passed, device: 'a stub', scheme: 'shard', model: 'smollm2-135m' });
  expect(text).toBe('12 cases, 0 failed, 1 skipped; largest error 3.0e-7; seed 7\n  1 not made: prefill\n');
  expect(close).toHaveBeenCalledOnce();
});

test('a failed case ends with 1 and the command that replays it', async () => {
  const { tools } = stub({ ...passed, failed: 1, failures });
  const { code, json, text } = await verify(quietContext(), 'shard', options, tools);
  const replay = 'kvforge verify shard --model smollm2-135m --device emulator --cases 1 --seed 1234';
  expect(code).toBe(1);
  expect(json).toMatchObject({ failed: 1, failures: [{ ...failures[0], replay }] });
  expect(text).toContain(`Replay the first: ${replay}\n`);
});

test('options of the kernels decide what is verified, and are part of the command that replays it', async () => {
  const { tools, verifyScheme } = stub({ ...passed, failed: 1, failures });
  const chosen = { ...options, plain: true, set: ['attend.tileTokens=8'] } as const;
  const { text } = await verify(quietContext(), 'shard', chosen, tools);
  const [, , , { generated }] = verifyScheme.mock.calls[0]!;
  expect(generated!.target).toEqual({ language: 'cuda', arch: 'sm_80', tensorCores: false });
  expect(generated!.manifest.kernels.find(({ entry }) => entry === 'attend')!.tunables.tileTokens).toBe(8);
  expect(text).toContain('--device emulator --plain --set attend.tileTokens=8 --cases 1 --seed 1234\n');
  const foreign = { ...options, device: 'webgpu', plain: true } as const;
  await expect(verify(quietContext(), 'shard', foreign, tools)).rejects.toThrow(
    '--plain does not apply to wgsl kernels',
  );
});

test('winners of the emulator are not taken for a GPU', async () => {
  const lockfile = join(temporaryFolder(), 'kvforge.lock.json');
  const shape = '1x8192';
  const own = { scheme: 'shard', model: 'smollm2-135m', modelHash: await modelHash(presetModel('smollm2-135m')) };
  const timing = { microseconds: 10, spread: 1, ties: [], source: '0'.repeat(64) };
  const where = { target: 'sm_80', device: 'CPU emulator of CUDA', driver: 'g++ 12' };
  const tunables = { tileTokens: 16 };
  await addToLock(lockfile, [{ ...own, ...where, ...timing, stage: 'decompress', shape, tunables }]);
  const tilesOf = async (name: string, lines: string[]) => {
    const { tools, verifyScheme } = stub(passed, name);
    await verify(quietContext(lines), 'shard', { ...options, lockfile }, tools);
    const { kernels } = verifyScheme.mock.calls[0]![3].generated!.manifest;
    return kernels.find(({ entry }) => entry === 'decompress')!.tunables.tileTokens;
  };
  const usual = decompressStage.tunables(defaultTargets.cuda).tileTokens.values[0];
  expect(usual).not.toBe(16);
  const lines: string[] = [];
  expect(await tilesOf('NVIDIA H200', lines)).toBe(usual);
  expect(lines[0]).toBe(
    `${lockfile} has nothing for shard on smollm2-135m, sm_80 on NVIDIA H200: kernels have their default tunables`,
  );
  expect(await tilesOf('CPU emulator of CUDA', [])).toBe(16);
});

test('a fault closes the device too', async () => {
  const { tools, close } = stub(new Error('lost'));
  await expect(verify(quietContext(), 'shard', options, tools)).rejects.toThrow('lost');
  expect(close).toHaveBeenCalledOnce();
});

test('without a driver a CUDA device is missing', async () => {
  vi.stubEnv('KVFORGE_LIBCUDA', '/no/libcuda.so');
  const run = await cli('verify', 'shard', '--model', 'smollm2-135m', '--device', 'cuda', '--json');
  vi.unstubAllEnvs();
  expect(run.code).toBe(3);
  expect(errorOf(run)).toMatchObject({ code: 'missing-capability' });
});

test.each([
  [{ device: 'tpu' }, '--device: expected one of emulator, webgpu, cuda, got "tpu"'],
  [{ cases: '0' }, '--cases: expected a whole number from 1 to 1000000, got "0"'],
  [{ seed: '-1' }, '--seed: expected a whole number from 0 to 4294967295, got "-1"'],
])('%j is refused', async (change, message) => {
  const fault = await verify(quietContext(), 'shard', { ...options, ...change }, stub(passed).tools).catch(reportError);
  expect(fault).toMatchObject({ code: 'wrong-use', message });
});
