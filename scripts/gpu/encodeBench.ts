/**
 * Times the encoding of one layer, from prompt to finished cache, and says what it costs in accuracy:
 *
 *   node encodeBench.mjs cuda FILE [samples] [stage.tunable=value ...]
 *
 * FILE is a safetensors file with `k` and `v`, F16 [KV heads, tokens, head dim], keys after RoPE as Llama-3.1-8B rotates
 * them; bench/encode_torch.py writes one, and does the same steps in PyTorch. Prints microseconds of every kernel, of
 * the whole list on the device's clock, and of a recorded run on the host's; then the relative errors of the middle.
 */
import { readFile } from 'node:fs/promises';
import { generate } from '../../codegen/generate.js';
import { splitPrompt } from '../../codegen/plan/layout.js';
import { presetModel, shard } from '../../dsl/index.js';
import { promptLengths } from '../../runtime/cache/lengths.js';
import { CacheMemory } from '../../runtime/cache/memory.js';
import type { Device, DeviceBuffer, Launch } from '../../runtime/device.js';
import { encodeLaunches } from '../../runtime/encode.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { parseSafetensors } from '../../runtime/safetensors.js';
import { halfValues } from '../../runtime/verify/draws.js';
import { backendOf } from './openDevice.js';

const [deviceName, path = '', samplesText = '9', ...choices] = process.argv.slice(2);
const samples = Number(samplesText);
const backend = backendOf(deviceName);
const model = presetModel('llama-3.1-8b');
const file = parseSafetensors(await readFile(path));

function halves(name: 'k' | 'v'): { readonly bits: Uint16Array; readonly tokens: number } {
  const tensor = file.tensors.get(name);
  const [heads, tokens, channels] = tensor?.shape ?? [];
  if (tensor?.dtype !== 'F16' || heads !== model.kvHeads || channels !== model.headDim || tokens === undefined) {
    throw new Error(`${path}: expected ${name} as F16 [${model.kvHeads}, tokens, ${model.headDim}]`);
  }
  return { bits: new Uint16Array(new Uint8Array(tensor.bytes).buffer), tokens };
}

/** `stage.tunable=value` each. */
function tunablesOf(texts: readonly string[]): Record<string, Record<string, number>> {
  const chosen: Record<string, Record<string, number>> = {};
  for (const text of texts) {
    const [stage = '', name = '', value] = text.split(/[.=]/);
    chosen[stage] = { ...chosen[stage], [name]: Number(value) };
  }
  return chosen;
}

/** The number of every f16: a table, as prompts have millions. */
const numberOf = halfValues(Uint16Array.from({ length: 65536 }, (_, bits) => bits));

const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;

/** Microseconds of one launch of every entry; what an entry destroys is made anew before it, and that time taken off. */
async function timesByEntry(device: Device, launches: readonly Launch[]): Promise<Map<string, number>> {
  const times = new Map<string, number>();
  const options = { samples, rounds: 3 };
  for (const [index, launch] of launches.entries()) {
    const { entry } = launch.kernel.descriptor;
    if (times.has(entry)) continue;
    // Timing leaves scratch as no encoding does, and how often the eigenproblem turns depends on it.
    await device.run(launches);
    const restored = entry === 'basis_factor' ? [launches[index - 1]!] : [];
    const together = median(await device.time([[...restored, launch]], options));
    const alone = restored.length === 0 ? 0 : median(await device.time([restored], options));
    times.set(entry, together - alone);
  }
  return times;
}

/** Relative error over the middle, all KV heads. */
function relativeError(decoded: Uint16Array, exact: Uint16Array, tokens: number): number {
  const { headDim, kvHeads } = model;
  const { sinks, window } = shard;
  let [error, size] = [0, 0];
  for (let head = 0; head < kvHeads; head++) {
    const [first, end] = [head * tokens + sinks, head * tokens + tokens - window];
    for (let i = first * headDim; i < end * headDim; i++) {
      const was = numberOf[exact[i]!]!;
      error += (numberOf[decoded[i]!]! - was) ** 2;
      size += was ** 2;
    }
  }
  return Math.sqrt(error / size);
}

const [keys, values] = [halves('k'), halves('v')];
const { tokens } = keys;
const device = await backend.open();
const generated = await generate(shard, model, backend.target(device), tunablesOf(choices));
const entries = generated.manifest.kernels.map(({ entry }) => entry).filter((entry) => !/^(attend|append)/.test(entry));
const kernels = await LoadedKernels.load(device, generated, entries);
const g = kernels.geometry;
const memory = new CacheMemory(kernels, { sequences: 1, tokens, generated: 0 });
const owned: DeviceBuffer[] = [];
const upload = (label: string, data: Uint16Array) => {
  const buffer = device.allocate(label, data.byteLength);
  owned.push(buffer);
  device.write(buffer, data);
  return { buffer };
};
const lengths = promptLengths(g, tokens);
memory.writeRecord(0, lengths);
const input = { ...memory.bindingsOf(0), keys: upload('keys', keys.bits), values: upload('values', values.bits) };
const sizes = { promptTokens: tokens, middleTokens: splitPrompt(g, tokens).middle, queryTokens: 0 };
const launches = encodeLaunches(kernels, input, sizes, owned);

const about = `${launches.length} launches ${choices.join(' ')}`;
console.log(`${device.description}, ${model.name}, ${tokens} tokens, ${about}`);
await device.run(launches);
const whole = median(await device.time([launches], { samples, rounds: 1 }));
const recording = await device.record(launches);
await recording.run();
const runs: number[] = [];
for (let run = 0; run < samples; run++) {
  const started = performance.now();
  await recording.run();
  runs.push((performance.now() - started) * 1000);
}
recording.release();

const decoded = [
  upload('decoded keys', new Uint16Array(keys.bits.length)),
  upload('decoded values', new Uint16Array(values.bits.length)),
];
await device.run([
  kernels.launch('decompress', { tokens }, { ...memory.bindingsOf(0), keys: decoded[0]!, values: decoded[1]! }),
]);
const errors: number[] = [];
for (const [index, exact] of [keys.bits, values.bits].entries()) {
  const bytes = await device.read(decoded[index]!.buffer);
  errors.push(relativeError(new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2), exact, tokens));
}

console.log(`  whole list ${(whole / 1000).toFixed(3)} ms on the ${device.clock}'s clock`);
console.log(`  recorded run ${(median(runs) / 1000).toFixed(3)} ms on the host's clock`);
console.log(`  relative error of keys ${errors[0]!.toFixed(6)}, of values ${errors[1]!.toFixed(6)}`);

const times = await timesByEntry(device, launches);
const counts = new Map<string, number>();
for (const { kernel } of launches) counts.set(kernel.descriptor.entry, (counts.get(kernel.descriptor.entry) ?? 0) + 1);
const rows = [...times].map(([entry, time]) => ({ entry, time, count: counts.get(entry)! }));
rows.sort((a, b) => b.time * b.count - a.time * a.count);
for (const { entry, time, count } of rows) {
  const total = (time * count).toFixed(1).padStart(9);
  console.log(`  ${entry.padEnd(22)} ${time.toFixed(1).padStart(9)} us x ${String(count).padStart(2)} = ${total} us`);
}
console.log(`  sum ${(rows.reduce((sum, { time, count }) => sum + time * count, 0) / 1000).toFixed(3)} ms`);
for (const buffer of owned) buffer.release();
memory.release();
await device.close();
