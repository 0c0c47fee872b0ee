import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import { promptLengths } from '../cache/lengths.js';
import { CacheMemory } from '../cache/memory.js';
import { scoped } from '../cache/scoped.js';
import type { DeviceBuffer } from '../device.js';
import { encodeLaunches } from '../encode.js';
import type { LoadedKernels } from '../kernels.js';
import { valuesOfHalves } from './halfTable.js';
import { lowRankKeys, normalHalves } from './inputs.js';
import { type Timing, timingOf } from './samples.js';

/** A prompt of one layer: f16 bits [KV heads][tokens][head dim], keys after RoPE. */
export interface EncodePrompt {
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
  readonly tokens: number;
}

export interface EncodeMeasured {
  readonly timing: Timing;
  /** Allocated for the compressed tokens. */
  readonly bytes: number;
  /** Of the decoded middle against the prompt: root of the squared error over the energy. */
  readonly keysError: number;
  readonly valuesError: number;
}

/** The same prompt for the same seed. */
export function encodePrompt({ kvHeads, headDim, model }: Geometry, tokens: number, seed: number): EncodePrompt {
  const shape = { heads: kvHeads, tokens, headDim };
  return { keys: lowRankKeys(shape, model.rope, seed), values: normalHalves(shape, seed + 2), tokens };
}

/** Times everything from a prompt to a finished cache of one layer, as one list of launches. */
export async function benchEncode(
  kernels: LoadedKernels,
  prompt: EncodePrompt,
  { seed, samples }: { readonly seed: number; readonly samples: number },
): Promise<EncodeMeasured> {
  const { device, geometry: g } = kernels;
  const { tokens } = prompt;
  const { sinks, window } = g.scheme;
  if (promptLengths(g, tokens).middleTokens === 0) {
    throw new KvforgeError('does-not-fit', {
      at: 'encode',
      expected: `more than ${sinks + window} tokens (those that stay exact)`,
      received: String(tokens),
      hint: 'Encode a longer prompt.',
    });
  }
  const memory = new CacheMemory(kernels, { sequences: 1, tokens, generated: 0 });
  try {
    // Fresh memory may hold what an earlier encode of the same prompt has left.
    memory.writeShare(0, new Uint8Array(memory.layout.bytes).fill(poison));
    const timing = await scoped(async (owned) => {
      const upload = (label: string, data: Uint16Array) => {
        const buffer = device.allocate(label, data.byteLength);
        owned.push(buffer);
        device.write(buffer, data);
        return { buffer };
      };
      const queryTokens = g.weighted ? Math.min(tokens, observedQueries) : 0;
      const lengths = promptLengths(g, tokens);
      memory.writeRecord(0, lengths, { queryTokens });
      const asked = { heads: g.heads, tokens: queryTokens, headDim: g.headDim };
      const input = {
        ...memory.bindingsOf(0),
        keys: upload('keys', prompt.keys),
        values: upload('values', prompt.values),
        ...(g.weighted ? { queries: upload('queries', normalHalves(asked, seed + 3)) } : {}),
      };
      const sizes = { promptTokens: tokens, middleTokens: lengths.middleTokens, queryTokens };
      const list = encodeLaunches(kernels, input, sizes, owned);
      return timingOf(await device.time([list], { samples, rounds: 1 }));
    });
    const decoded = await decodedOnDevice(memory, tokens);
    return {
      timing,
      bytes: memory.bytes,
      keysError: middleError(g, decoded.keys, prompt.keys, tokens),
      valuesError: middleError(g, decoded.values, prompt.values, tokens),
    };
  } finally {
    memory.release();
  }
}

/** A byte that makes NaN of halves. */
const poison = 0xff;

/** Everything decoded by the device, into memory that holds NaN before. */
async function decodedOnDevice(
  memory: CacheMemory,
  tokens: number,
): Promise<{ readonly keys: Uint16Array; readonly values: Uint16Array }> {
  const { device, kernels, geometry: g } = memory;
  return scoped(async (owned) => {
    const allocate = (label: string) => {
      const buffer = device.allocate(label, tokens * g.width * 2);
      owned.push(buffer);
      device.write(buffer, new Uint8Array(buffer.bytes).fill(poison));
      return { buffer };
    };
    const [keys, values] = [allocate('keys'), allocate('values')];
    await device.run([kernels.launch('decompress', { tokens }, { ...memory.bindingsOf(0), keys, values })]);
    const halves = async ({ buffer }: { readonly buffer: DeviceBuffer }) => {
      const bytes = await device.read(buffer);
      return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
    };
    return { keys: await halves(keys), values: await halves(values) };
  });
}

function middleError(g: Geometry, decoded: Uint16Array, exact: Uint16Array, tokens: number): number {
  const { sinkTokens, middleTokens } = promptLengths(g, tokens);
  let [error, energy] = [0, 0];
  for (let head = 0; head < g.kvHeads; head++) {
    const from = (head * tokens + sinkTokens) * g.headDim;
    const end = from + middleTokens * g.headDim;
    const [a, b] = [valuesOfHalves(exact.subarray(from, end)), valuesOfHalves(decoded.subarray(from, end))];
    for (let i = 0; i < a.length; i++) {
      error += (a[i]! - b[i]!) ** 2;
      energy += a[i]! ** 2;
    }
  }
  return Math.sqrt(error / energy);
}
