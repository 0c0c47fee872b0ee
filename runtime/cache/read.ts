import { attendLaunches, chosenSplits } from '../attendLaunches.js';
import type { DeviceBuffer, Launch } from '../device.js';
import { checkHalf } from '../halfBits.js';
import { checkSplits, checkWhole } from './checkInput.js';
import { totalTokens } from './lengths.js';
import type { CacheMemory } from './memory.js';
import { scoped } from './scoped.js';

export interface AttendOptions {
  /** Query tokens of each sequence: its last ones, each seeing what is not after it; 1 if left out. */
  readonly queries?: number;
  /** Blocks that share one row of tokens; if left out, as tuned for shapes like this one, else chosen from the lengths. */
  readonly splits?: number;
}

/** Decoded tokens in order, f16 bits [KV heads][tokens][head dim], keys after RoPE; of latents there are no values. */
export interface DecodedTokens {
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
  readonly tokens: number;
}

/** Attention of the last query tokens of every sequence over what it holds. */
export async function attend(memory: CacheMemory, query: Uint16Array, options: AttendOptions): Promise<Float32Array> {
  const { geometry: g, device, capacity } = memory;
  const { sequences, layer } = capacity;
  const { queries = 1 } = options;
  checkWhole(queries, { at: 'queries', least: 1, most: 65535, hint: 'Leave it out for one query token a sequence.' });
  checkHalf(query, {
    name: `query, layer ${layer}`,
    dimensions: [
      { name: 'sequence', size: sequences },
      { name: 'query token', size: queries },
      { name: 'head', size: g.heads },
      { name: 'channel', size: g.headDim },
    ],
  });
  const { slidingWindow = Number.POSITIVE_INFINITY } = memory.layer;
  // Reading what sequences hold waits for the device, so with splits given it is taken to be what they have room for.
  const held =
    options.splits === undefined ? Math.max(...(await memory.readRecords()).map(totalTokens)) : memory.mostTokens;
  // Splits share what a query sees, and it sees no further back than the window.
  const seen = Math.min(held, slidingWindow);
  const splits = options.splits ?? chosenSplits(memory.kernels, sequences * queries, seen);
  checkSplits(splits);
  return scoped(async (owned) => {
    const plan = { sequences, queries, splits };
    const { runs, output } = attendLaunches(memory.kernels, { ...memory.bindings, query, seen }, plan, owned);
    for (const launches of runs) await device.run(launches);
    const bytes = await device.read(output);
    return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  });
}

/** The launch that decodes all tokens of a sequence on the device, and what it writes: f16 [KV heads][tokens][head dim]. */
export function decodeLaunch(
  memory: CacheMemory,
  sequence: number,
  tokens: number,
  owned: DeviceBuffer[],
): { readonly launch: Launch; readonly keys: DeviceBuffer; readonly values: DeviceBuffer | undefined } {
  const allocate = (label: string) => {
    const buffer = memory.device.allocate(label, tokens * memory.geometry.width * 2);
    owned.push(buffer);
    return buffer;
  };
  const keys = allocate('keys');
  const values = memory.geometry.family === 'latent' ? undefined : allocate('values');
  const written = { keys: { buffer: keys }, ...(values ? { values: { buffer: values } } : {}) };
  const bindings = { ...memory.bindingsOf(sequence), ...written };
  return { launch: memory.kernels.launch('decompress', { tokens }, bindings), keys, values };
}

/** Decodes a sequence to f16. */
export async function decompress(memory: CacheMemory, sequence: number): Promise<DecodedTokens> {
  const { device } = memory;
  const tokens = totalTokens(await memory.readRecord(sequence));
  if (tokens === 0) return { keys: new Uint16Array(0), values: new Uint16Array(0), tokens };
  return scoped(async (owned) => {
    const { launch, keys, values } = decodeLaunch(memory, sequence, tokens, owned);
    await device.run([launch]);
    const halves = async (buffer: DeviceBuffer) => {
      const bytes = await device.read(buffer);
      return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
    };
    return { keys: await halves(keys), values: values ? await halves(values) : new Uint16Array(0), tokens };
  });
}
