import { randomBytes } from 'node:crypto';
import { readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { sha256 } from '../../codegen/sha256.js';
import { type Architecture, architectures } from '../../dsl/stage.js';
import type { DeviceFacts } from './protocol.js';

const factsShape = z.strictObject({
  name: z.string(),
  driver: z.string(),
  architecture: z.enum(architectures as readonly [Architecture, ...Architecture[]]).optional(),
  multiprocessors: z.number().int().positive().optional(),
  sharedBytes: z.number().int().nonnegative(),
  features: z.array(z.string()),
  clock: z.enum(['device', 'host']),
});

/** Of what decides which device a name opens: another driver, GPU or setting gives another hash. */
async function machineHash(): Promise<string> {
  const proc = '/proc/driver/nvidia';
  const read = (path: string) => readFile(path, 'utf8').catch(() => '');
  const gpus = (await readdir(join(proc, 'gpus')).catch(() => [])).sort();
  const settings = Object.entries(process.env)
    .filter(([name]) => /^(KVFORGE_|CUDA_|VK_|CXX$)/.test(name))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  const gpuTexts = await Promise.all(gpus.map((gpu) => read(join(proc, 'gpus', gpu, 'information'))));
  const parts = [process.version, process.arch, await read(join(proc, 'version')), gpuTexts, settings];
  return sha256(new TextEncoder().encode(JSON.stringify(parts)));
}

async function fileOf(folder: string, device: string): Promise<string> {
  const name = await sha256(new TextEncoder().encode(`${device} ${await machineHash()}`));
  return join(folder, `device-${name}.json`);
}

/**
 * What a device was when it was opened last, so that a run that has all its times needs no device; undefined if the
 * driver, the GPUs or the settings that choose among them have changed since.
 */
export async function recallFacts(folder: string, device: string): Promise<DeviceFacts | undefined> {
  const text = await readFile(await fileOf(folder, device), 'utf8').catch(() => undefined);
  if (text === undefined) return undefined;
  try {
    return factsShape.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}

export async function rememberFacts(folder: string, device: string, facts: DeviceFacts): Promise<void> {
  const path = await fileOf(folder, device);
  const own = `${path}-${randomBytes(6).toString('hex')}.tmp`;
  await writeFile(own, `${JSON.stringify(facts)}\n`, { flag: 'wx' });
  await rename(own, path);
}
