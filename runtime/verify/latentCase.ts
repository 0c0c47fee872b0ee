import { splitPrompt } from '../../codegen/plan/layout.js';
import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import {
  emptyTensor,
  type HeadTensor,
  type LatentCodes,
  type LatentParts,
  normalFrom,
  type StreamedPart,
  seededRandom,
  toHalf,
  vectorAt,
} from '../reference/index.js';
import { checkAppendedRecord, checkUntouchedParts } from './appended.js';
import { halfBits, halfValues, largestOf, numbers } from './draws.js';
import type { Judge } from './judge.js';
import type { LatentDraw } from './latentDraws.js';
import {
  checkCodedTokens,
  checkExactTokens,
  checkLatentReads,
  checkStreamedTokens,
  type HeldLatents,
  latentValues,
  readLatents,
} from './latentHeld.js';
import { packedLatentMiddle, packLatent } from './packLatent.js';

/** Fills the sequences, appends, and judges every part that either wrote, then attention over all of it. */
export async function latentCase(
  kernels: LoadedKernels,
  g: LatentGeometry,
  draw: LatentDraw,
  bench: { readonly judge: Judge; readonly bar: number },
): Promise<void> {
  const { judge } = bench;
  const { tokens, appended, kind, seed } = draw;
  const most = draw.start === 'codes' ? Math.max(...tokens) + g.scheme.window : Math.max(...tokens);
  const generated = appended + (draw.start === 'codes' ? draw.stream : 0);
  const cache = KvCache.open(kernels, { sequences: tokens.length, tokens: most, generated });
  try {
    const before: HeldLatents[] = [];
    for (const [sequence, count] of tokens.entries()) {
      if (draw.start === 'codes') await fillCodes(cache, g, draw, sequence);
      else if (count > 0) await fillPrompt(cache, g, { draw, sequence, count }, judge);
      before.push(await readLatents(cache, g, sequence));
    }
    const drawn = numbers({ kind, seed: seed + 1 }, tokens.length * appended, g.headDim);
    const bits = halfBits(drawn);
    if (appended > 0) await cache.append(bits, undefined, { tokens: appended });
    const after: HeldLatents[] = [];
    for (const sequence of tokens.keys()) {
      const held = await readLatents(cache, g, sequence);
      after.push(held);
      const own = bits.subarray(sequence * appended * g.headDim, (sequence + 1) * appended * g.headDim);
      const added = { heads: 1, tokens: appended, channels: g.headDim, data: halfValues(own) };
      checkAppended(cache, g, { before: before[sequence]!, after: held, added }, `sequence ${sequence}`, judge);
    }
    await checkLatentReads(cache, g, after, draw, bench);
  } finally {
    await cache.release();
  }
}

async function fillPrompt(
  cache: KvCache,
  g: LatentGeometry,
  { draw, sequence, count }: { readonly draw: LatentDraw; readonly sequence: number; readonly count: number },
  judge: Judge,
): Promise<void> {
  const bits = halfBits(numbers({ kind: draw.kind, seed: draw.seed + 10 * sequence + 3 }, count, g.headDim));
  const prompt: HeadTensor = { heads: 1, tokens: count, channels: g.headDim, data: halfValues(bits) };
  await cache.prefill(sequence, { keys: bits, tokens: count });
  const { parts, share } = await readLatents(cache, g, sequence);
  const { sinks, middle, window } = splitPrompt(g, count);
  const about = `${draw.kind}, ${count} tokens`;
  const lengths = [parts.sinks.tokens - sinks, parts.middle.tokens - middle, parts.window.tokens - window];
  judge.check(`prefill: tokens of the segments (${about})`, Math.max(...lengths.map(Math.abs)), 0);
  checkExactTokens(parts.sinks, prompt, 0, `prefill, sinks (${about})`, judge);
  checkExactTokens(parts.window, prompt, count - window, `prefill, window (${about})`, judge);
  checkCodedTokens(g, parts, prompt, sinks, judge);
  for (const [name, bytes] of packedLatentMiddle(g, parts)) {
    const { offset } = cache.layout.parts.find((part) => part.name === name)!;
    const at = bytes.findIndex((byte, i) => byte !== share[offset + i]);
    judge.check(`${name}: byte ${at} holds bits beside the fields`, at < 0 ? 0 : 1, 0);
  }
}

/** Codes of random content: what a kernel reads depends on nothing else. */
async function fillCodes(cache: KvCache, g: LatentGeometry, draw: LatentDraw, sequence: number): Promise<void> {
  const random = seededRandom(draw.seed + 100 * sequence);
  const sinks = Math.min(g.scheme.sinks, draw.tokens[sequence]!);
  const middle = draw.tokens[sequence]! - sinks;
  const parts = drawLatents(g, { ...draw, sinks, middle }, random);
  const share = new Uint8Array(cache.layout.bytes);
  packLatent(g, cache.layout, { ...parts, windowStart: draw.windowStart }, share);
  await cache.writeShare(sequence, share, {
    sinkTokens: sinks,
    middleTokens: middle,
    streamTokens: draw.stream,
    windowTokens: draw.window,
    windowStart: draw.windowStart,
    promptTokens: sinks + middle,
  });
}

function drawLatents(
  g: LatentGeometry,
  { sinks, middle, stream, window, magnitude }: LatentDraw & { readonly sinks: number; readonly middle: number },
  random: () => number,
): LatentParts {
  const { latentDim, rotaryDim } = g;
  const below = (limit: number) => Math.floor(random() * limit);
  const halves = (count: number) => Float64Array.from({ length: count }, () => toHalf(magnitude * normalFrom(random)));
  const exact = (tokens: number): HeadTensor => ({
    ...emptyTensor(1, tokens, g.headDim),
    data: halves(tokens * g.headDim),
  });
  const size = (largest: number) => (random() < 0.1 ? 0 : (magnitude * 2 ** (2 * random() - 1)) / largest);
  const coded = (
    { bits, scaleChannels, turned, codec }: ScalarGroups,
    d: number,
    values: Float64Array,
  ): LatentCodes => {
    const largest = largestOf(values);
    const scales = Float64Array.from({ length: (middle * d) / scaleChannels }, () => toHalf(size(largest)));
    return {
      turned,
      block: scaleChannels,
      codes: Uint8Array.from({ length: middle * d }, () => below(2 ** bits)),
      scales,
      // Values of codec with an offset are all of one sign; taken off, their numbers have both.
      ...(codec.device.offset
        ? { offsets: scales.map((scale) => toHalf(-scale * largest * (0.25 + random() / 2))) }
        : {}),
      values,
    };
  };
  const streamed = (d: number, levels: Float64Array): StreamedPart => ({
    codes: Uint8Array.from({ length: stream * d }, () => below(2 ** g.streamBits)),
    norms: Float64Array.from({ length: stream }, () => toHalf(size(1 / Math.sqrt(d)))),
    levels,
  });
  const values = latentValues(g);
  return {
    latentDim,
    rotaryDim,
    sinks: exact(sinks),
    middle: {
      tokens: middle,
      latent: coded(g.latent, latentDim, values.latent),
      rotary: g.rotary ? coded(g.rotary, rotaryDim, values.rotary!) : halves(middle * rotaryDim),
    },
    stream: {
      tokens: stream,
      latent: streamed(latentDim, values.streamLatent),
      rotary: g.rotary ? streamed(rotaryDim, values.streamRotary) : halves(stream * rotaryDim),
    },
    window: exact(window),
  };
}

function checkAppended(
  cache: KvCache,
  g: LatentGeometry,
  { before, after, added }: { readonly before: HeldLatents; readonly after: HeldLatents; readonly added: HeadTensor },
  where: string,
  judge: Judge,
): void {
  const change = { before, after, count: added.tokens };
  const left = checkAppendedRecord(g.scheme.window, change, where, judge);
  const all = emptyTensor(1, before.lengths.windowTokens + added.tokens, g.headDim);
  all.data.set(before.parts.window.data);
  all.data.set(added.data, before.parts.window.data.length);
  checkExactTokens(after.parts.window, all, left, `append, window: ${where}`, judge);
  const first = before.lengths.streamTokens;
  const moved = { first, left: Array.from({ length: left }, (_, token) => vectorAt(all, 0, token)) };
  if (after.lengths.streamTokens === first + left) checkStreamedTokens(g, after.parts, moved, where, judge);
  checkUntouchedParts(cache.layout, change, where, judge);
}
