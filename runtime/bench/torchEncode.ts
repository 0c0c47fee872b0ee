import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { packagePath } from '../../codegen/packageRoot.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { LowRankGeometry } from '../../dsl/geometry.js';
import { presetModel } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import type { DeviceIdentity } from '../device.js';
import type { EncodePrompt } from './encode.js';

const report = z.object({
  device: z.string(),
  torch: z.string(),
  tokens: z.int(),
  errors: z.record(z.string(), z.number()),
  counted: z.array(z.string()),
  total: z.number().positive(),
  'total with svd_lowrank': z.number().positive(),
});

/** The same steps in PyTorch, on the same prompt. */
export interface TorchEncode {
  /** Milliseconds of all steps, each in the fastest way that PyTorch offers. */
  readonly ms: number;
  /** With `torch.svd_lowrank` for the basis, as the scheme was published. */
  readonly publishedMs: number;
  readonly keysError: number;
  readonly valuesError: number;
  readonly torch: string;
}

export interface TorchEncodeOptions {
  readonly python: string;
  /** `bench/encode_torch.py` of the package if left out. */
  readonly script?: string;
  readonly limitMs?: number;
}

/** The one model and scheme whose steps the script follows. */
const followed = presetModel('llama-3.1-8b');

/**
 * Runs `bench/encode_torch.py`.
 *
 * @throws KvforgeError `missing-capability` with the reason when there is no result
 */
export async function torchEncode(
  g: LowRankGeometry,
  device: DeviceIdentity,
  prompt: EncodePrompt,
  options: TorchEncodeOptions,
): Promise<TorchEncode> {
  const at = `encode through ${options.python}`;
  const refuse = (expected: string, received: string): never => {
    const hint = 'Run bench/encode_torch.py by itself to see what it prints.';
    throw new KvforgeError('missing-capability', { at, expected, received, hint });
  };
  const isNamed = g.scheme.name === shard.name && g.model.name === followed.name;
  if (g.scheme !== shard || !isDeepStrictEqual(g.model, followed)) {
    const other = isNamed ? ' of another shape' : '';
    refuse(`${shard.name} for ${followed.name}`, `${g.scheme.name} for ${g.model.name}${other}`);
  }
  const folder = await mkdtemp(join(tmpdir(), 'kvforge-bench-'));
  try {
    const [input, output] = [join(folder, 'prompt.safetensors'), join(folder, 'result.json')];
    await writeFile(input, promptFile(g, prompt));
    const script = options.script ?? packagePath('bench', 'encode_torch.py');
    const args = [script, input, '--tokens', String(prompt.tokens), '--json', output];
    const failure = await run(options.python, args, options.limitMs ?? 300_000, device);
    if (failure !== undefined) refuse('a result', failure);
    const text = await readFile(output, 'utf8').catch(() => refuse('a result', 'no file'));
    const result = report.safeParse(parsed(text));
    if (!result.success) return refuse('a result of its form', result.error.issues[0]!.message);
    const { data } = result;
    if (data.device !== device.name) refuse(`torch on ${device.name}`, `torch on ${data.device}`);
    const errorOf = (prefix: string) => {
      const found = data.errors[data.counted.find((step) => step.startsWith(prefix)) ?? ''];
      return found ?? refuse(`an error of the step ${prefix}`, 'none');
    };
    return {
      ms: data.total,
      publishedMs: data['total with svd_lowrank'],
      keysError: errorOf('basis'),
      valuesError: errorOf('Lloyd'),
      torch: data.torch,
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** The reason why it failed; undefined if it did not. */
function run(
  program: string,
  args: readonly string[],
  timeout: number,
  { uuid }: DeviceIdentity,
): Promise<string | undefined> {
  const env = { ...process.env, ...(uuid?.startsWith('GPU-') ? { CUDA_VISIBLE_DEVICES: uuid } : {}) };
  return new Promise((resolve) => {
    execFile(program, [...args], { env, timeout, killSignal: 'SIGKILL', maxBuffer: 2 ** 24 }, (error, _, stderr) => {
      if (error === null) return resolve(undefined);
      const { code, killed } = error as NodeJS.ErrnoException & { killed?: boolean };
      if (code === 'ENOENT') return resolve(`no program ${program}`);
      if (killed) return resolve(`none within ${timeout / 1000} s`);
      const last = stderr.trim().split('\n').at(-1)!.slice(0, 200);
      resolve(`its end with exit code ${code}${last === '' ? '' : `: ${last}`}`);
    });
  });
}

/** A safetensors file with `k` and `v`. */
function promptFile({ kvHeads, headDim }: LowRankGeometry, { keys, values, tokens }: EncodePrompt): Uint8Array {
  const tensor = (first: number, { byteLength }: Uint16Array) => ({
    dtype: 'F16',
    shape: [kvHeads, tokens, headDim],
    data_offsets: [first, first + byteLength],
  });
  const header = JSON.stringify({ k: tensor(0, keys), v: tensor(keys.byteLength, values) });
  const text = new TextEncoder().encode(header.padEnd(Math.ceil(header.length / 8) * 8));
  const file = new Uint8Array(8 + text.length + keys.byteLength + values.byteLength);
  new DataView(file.buffer).setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  const bytesOf = (data: Uint16Array) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  file.set(bytesOf(keys), 8 + text.length);
  file.set(bytesOf(values), 8 + text.length + keys.byteLength);
  return file;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
