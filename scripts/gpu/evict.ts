/**
 * Evicts tokens of a long prompt by their weights:
 *
 *   node evict.mjs cuda [scheme,scheme] [prompt tokens]
 *
 * Weights are held to float64 over the decoded keys, tokens that are kept to what they were, bit for bit, and attention
 * afterwards to float64. Prints the largest errors and the times of the calls; ends with 1 if something differs.
 */
import { generate } from '../../codegen/generate.js';
import { presetModel } from '../../dsl/index.js';
import { presets, schemeNames } from '../../dsl/schemes/presets.js';
import { type DecodedTokens, Evictor, heavyHitters, KvCache, LoadedKernels } from '../../runtime/index.js';
import { observedScores, tokenMasses } from '../../runtime/reference/index.js';
import { halfValues, worstDifference, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { backendOf, countOf } from './openDevice.js';

const [deviceName, names = 'int8,int4-hadamard,kivi4', tokensText = '8192'] = process.argv.slice(2);
const backend = backendOf(deviceName);
const tokens = countOf('prompt tokens', tokensText, 512);
const queries = 4;
const model = presetModel('llama-3.1-8b');
const device = await backend.open();
/** Numbers of either sign from 2^-5 to 2: normal ones would take longer than all that the device does. */
const halves = (count: number, seed: number): Uint16Array => {
  const bits = new Uint16Array(count);
  let state = seed * 2654435761;
  for (let at = 0; at < count; at++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bits[at] = 0x2800 + ((state >>> 8) % 0x1800) + ((state >>> 31) << 15);
  }
  return bits;
};

/** The number of every f16: looked up, as there are many millions. */
const numbers = halfValues(Uint16Array.from({ length: 2 ** 16 }, (_, bits) => bits));
const valuesOf = (bits: Uint16Array) => Float64Array.from(bits, (half) => numbers[half]!);

/** One vector of every head, [heads][channels], as bits. */
function tokenOf({ keys, values, tokens: held }: DecodedTokens, token: number): Uint16Array {
  const heads = Array.from({ length: model.kvHeads }, (_, head) => (head * held + token) * model.headDim);
  return Uint16Array.from(
    [keys, values].flatMap((data) => heads.flatMap((from) => [...data.subarray(from, from + model.headDim)])),
  );
}

async function timed<T>(work: () => Promise<T>): Promise<{ readonly ms: number; readonly result: T }> {
  const started = performance.now();
  const result = await work();
  return { ms: performance.now() - started, result };
}

let failed = false;
for (const name of names.split(',')) {
  const preset = presets[name];
  if (!preset) {
    console.error(`expected schemes of ${schemeNames.join(', ')}, got ${name}`);
    process.exit(2);
  }
  const compiled = performance.now();
  const kernels = await LoadedKernels.load(device, await generate(await preset(), model, backend.target(device)));
  const g = kernels.geometry;
  console.log(`${name}: kernels compiled in ${((performance.now() - compiled) / 1000).toFixed(1)} s`);
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 64 });
  await cache.prefill(0, { keys: halves(tokens * g.width, 1), values: halves(tokens * g.width, 2), tokens });
  await cache.append(halves(40 * g.width, 3), halves(40 * g.width, 4), { tokens: 40 });
  const query = halves(queries * g.heads * g.headDim, 5);
  await cache.tokenWeights(0, query, { queries });
  const weighed = await timed(() => cache.tokenWeights(0, query, { queries }));
  const before = await cache.decompress(0);
  const tensor = (data: Uint16Array, held: number) => ({
    ...{ heads: g.kvHeads, tokens: held, channels: g.headDim },
    data: valuesOf(data),
  });
  const byHead = new Float64Array(query.length);
  for (let row = 0; row < queries * g.heads; row++) {
    const place = ((row % g.heads) * queries + Math.floor(row / g.heads)) * g.headDim;
    byHead.set(valuesOf(query.subarray(row * g.headDim, (row + 1) * g.headDim)), place);
  }
  const scores = observedScores(
    {
      keys: tensor(before.keys, before.tokens),
      queries: { heads: g.heads, tokens: queries, channels: g.headDim, data: byHead },
    },
    { scale: model.scoreScale, cap: model.scoreCap },
  );
  const wanted = tokenMasses(scores, { kvHeads: g.kvHeads, queries, after: 0, slidingWindow: 0 });
  const weightError = worstDifference(weighed.result.weights, wanted).by / Math.max(...wanted);

  const evictor = new Evictor(cache, 0, heavyHitters({ budget: tokens / 8, recent: tokens / 8 }));
  await evictor.observe(query, { queries });
  const one = query.subarray(0, g.heads * g.headDim);
  await cache.attend(one);
  const whole = await timed(() => cache.attend(one));
  const evicted = await timed(() => evictor.evict());
  const kept = evicted.result;
  const lengths = await cache.lengths(0);
  const after = await cache.decompress(0);
  const changed = kept.findIndex((token, index) => {
    const found = tokenOf(after, lengths.sinkTokens + index);
    return tokenOf(before, token).some((half, at) => half !== found[at]);
  });
  await cache.attend(one);
  const rest = await timed(() => cache.attend(one));
  const decoded = { keys: tensor(after.keys, after.tokens), values: tensor(after.values, after.tokens) };
  const expected = new Float64Array(one.length);
  for (let head = 0; head < g.heads; head++) {
    const at = head * g.headDim;
    const own = valuesOf(one.subarray(at, at + g.headDim));
    const kvHead = Math.floor(head / g.groupSize);
    expected.set(attendVisible(g, decoded, { query: own, kvHead, after: 0, slidingWindow: 0 }), at);
  }
  const attendError = worstError(rest.result, expected, g.headDim).by;
  const right = weightError < 1e-4 && changed < 0 && attendError < 4e-3;
  failed ||= !right;
  console.log(
    `${right ? 'right' : 'WRONG'} ${name}, ${tokens} tokens: weights within ${weightError.toExponential(1)}, ${kept.length} kept` +
      `${changed < 0 ? '' : `, token ${kept[changed]} changed`}, attention within ${attendError.toExponential(1)}; ` +
      `ms: weights of ${queries} queries ${weighed.ms.toFixed(2)}, evict ${evicted.ms.toFixed(2)}, ` +
      `attend ${whole.ms.toFixed(2)} before, ${rest.ms.toFixed(2)} after`,
  );
  await cache.release();
}
await device.close();
process.exitCode = failed ? 1 : 0;
