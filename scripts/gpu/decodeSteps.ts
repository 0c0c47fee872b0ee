/**
 * Decodes token by token while the cache grows, with every launch recorded once:
 *
 *   node decodeSteps.mjs cuda [model] [prompt tokens] [steps]
 *
 * At some steps the output is held to float64 on the same codes, and at all of them to append and attend of a second
 * cache, bit for bit. Prints the largest error and the time of a step; ends with 1 if something differs.
 */
import { generate } from '../../codegen/generate.js';
import { presetModel, shard } from '../../dsl/index.js';
import { KvCache } from '../../runtime/cache.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { halfBits, halfValues, worstError } from '../../runtime/verify/draws.js';
import { readHeld } from '../../runtime/verify/held.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { backendOf, countOf } from './openDevice.js';

const [deviceName, modelName = 'llama-3.1-8b', promptText = '256', stepsText = '1000'] = process.argv.slice(2);
const backend = backendOf(deviceName);
const promptTokens = countOf('prompt tokens', promptText, 1);
const steps = countOf('steps', stepsText, 1);
const model = presetModel(modelName as Parameters<typeof presetModel>[0]);
const device = await backend.open();
const target = backend.target(device);
const kernels = await LoadedKernels.load(device, await generate(shard, model, target));
const g = kernels.geometry;
const halves16 = target.language === 'cuda' ? target.tensorCores : target.f16;
const bar = halves16 ? 2e-3 : 1e-5;

const halves = (count: number, seed: number): Uint16Array => {
  const random = seededRandom(seed);
  return halfBits(Float64Array.from({ length: count }, () => normalFrom(random)));
};
const capacity = { sequences: 1, tokens: promptTokens, generated: steps };
const [cache, other] = [KvCache.open(kernels, capacity), KvCache.open(kernels, capacity)];
const prompt = {
  keys: halves(promptTokens * g.width, 1),
  values: halves(promptTokens * g.width, 2),
  tokens: promptTokens,
};
await cache.prefill(0, prompt);
await other.writeShare(0, await cache.readShare(0), await cache.lengths(0));

async function referenceOf(query: Uint16Array): Promise<Float64Array> {
  const { decoded } = await readHeld(cache, 0);
  const expected = new Float64Array(query.length);
  const { slidingWindow = 0 } = cache.layer;
  for (let head = 0; head < g.heads; head++) {
    const at = head * g.headDim;
    const q = halfValues(query.subarray(at, at + g.headDim));
    const kvHead = Math.floor(head / g.groupSize);
    expected.set(attendVisible(g, decoded, { query: q, kvHead, after: 0, slidingWindow }), at);
  }
  return expected;
}

const splits = 16;
const decoder = await cache.decoder({ splits });
const judged = new Set([0, 1, 63, 64, 65, Math.floor(steps / 2), steps - 1]);
const times: number[] = [];
const pairTimes: number[] = [];
let [largest, differing] = [0, 0];
for (let step = 0; step < steps; step++) {
  const keys = halves(g.width, 10 + 3 * step);
  const values = halves(g.width, 11 + 3 * step);
  const query = halves(g.heads * g.headDim, 12 + 3 * step);
  const started = performance.now();
  const output = await decoder.step(keys, values, query);
  times.push((performance.now() - started) * 1000);
  const before = performance.now();
  await other.append(keys, values);
  const expected = await other.attend(query, { splits });
  pairTimes.push((performance.now() - before) * 1000);
  if (output.some((x, i) => !Object.is(x, expected[i]))) differing++;
  if (judged.has(step)) {
    const { by } = worstError(output, await referenceOf(query), output.length);
    largest = Math.max(largest, by);
    console.log(`step ${step}: error ${by.toExponential(2)} against float64 on the same codes`);
  }
}
const { streamTokens } = await cache.lengths(0);
await cache.crop(0, promptTokens);
// Without the copies of a step: what a caller pays whose numbers are on the device.
const started = performance.now();
for (let step = 0; step < steps; step++) await decoder.run();
const bare = ((performance.now() - started) * 1000) / steps;

const median = (of: readonly number[]) => [...of].sort((a, b) => a - b)[Math.floor(of.length / 2)]!;
console.log(`${device.description}, ${model.name}, ${promptTokens} tokens of prompt, ${steps} steps, ${splits} splits`);
console.log(
  `  stream ${streamTokens} tokens; largest error ${largest.toExponential(2)} (bar ${bar}); ${differing} steps differ`,
);
console.log(`  step with copies: median ${median(times).toFixed(1)} us, without: mean ${bare.toFixed(1)} us`);
console.log(`  append + attend: median ${median(pairTimes).toFixed(1)} us`);
await cache.release();
await other.release();
await device.close();
process.exit(largest > bar || differing > 0 || streamTokens !== steps ? 1 : 0);
