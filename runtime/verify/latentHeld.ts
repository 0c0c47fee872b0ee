import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { KvCache } from '../cache.js';
import type { SequenceLengths } from '../record.js';
import {
  attendLatents,
  decodeLatents,
  type HeadTensor,
  hadamard,
  type LatentCodes,
  type LatentParts,
  type StreamedPart,
  seededRandom,
  vectorAt,
} from '../reference/index.js';
import { type LatentValues, unpackLatent } from '../reference/unpackLatent.js';
import { drawQuery } from './attendDraws.js';
import type { QueryDraw } from './caseDraws.js';
import { blockErrors } from './checkBlock.js';
import { codedErrors } from './checkStream.js';
import { codecValues } from './codeValues.js';
import { halfBits, halfValues, largestOf, worstError } from './draws.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** What a sequence of latents holds, and what it stands for in float64. */
export interface HeldLatents {
  readonly lengths: SequenceLengths;
  readonly share: Uint8Array;
  readonly parts: LatentParts;
  /** [1][tokens][latent, rotary part] */
  readonly decoded: HeadTensor;
}

/** What all codes of a scheme of latents stand for. */
export function latentValues({ scheme, latent, rotary, latentDim, rotaryDim }: LatentGeometry): LatentValues {
  return {
    latent: codecValues(latent.codec, latent.levelChannels),
    ...(rotary ? { rotary: codecValues(rotary.codec, rotary.levelChannels) } : {}),
    streamLatent: codecValues(scheme.stream, latentDim),
    streamRotary: codecValues(scheme.stream, rotaryDim),
  };
}

export async function readLatents(cache: KvCache, g: LatentGeometry, sequence: number): Promise<HeldLatents> {
  const lengths = await cache.lengths(sequence);
  const share = await cache.readShare(sequence);
  const parts = unpackLatent(g, cache.layout, share, lengths, latentValues(g));
  return { lengths, share, parts, decoded: decodeLatents(parts) };
}

/** Tokens kept as they are: a single different bit fails. */
export function checkExactTokens(
  segment: HeadTensor,
  wanted: HeadTensor,
  first: number,
  where: string,
  judge: Judge,
): void {
  const { channels, tokens, data } = segment;
  const at = data.findIndex((x, i) => !Object.is(x, wanted.data[first * channels + i]));
  const place = at < 0 ? '' : `, token ${Math.floor(at / channels)} of ${tokens}, channel ${at % channels}`;
  judge.check(`${where}${place}`, at < 0 ? 0 : 1, 0);
}

/** Holds scales, offsets and codes of a middle to the prompt's tokens, of which it begins at `first`. */
export function checkCodedTokens(
  g: LatentGeometry,
  { middle }: LatentParts,
  prompt: HeadTensor,
  first: number,
  judge: Judge,
): void {
  const { latentDim, rotaryDim } = g;
  const tokenPart = (token: number, from: number, to: number) => vectorAt(prompt, 0, first + token).subarray(from, to);
  for (const [name, groups, coded, from, to] of [
    ['latents', g.latent, middle.latent, 0, latentDim],
    ['rotary parts', g.rotary, middle.rotary, latentDim, latentDim + rotaryDim],
  ] as const) {
    if (coded instanceof Float64Array) {
      const wrong = coded.findIndex((x, i) => {
        const token = Math.floor(i / rotaryDim);
        return !Object.is(x, tokenPart(token, from, to)[i % rotaryDim]);
      });
      judge.check(`${name}: number ${wrong} of the middle is not as it came`, wrong < 0 ? 0 : 1, 0);
    } else {
      checkCodes(groups!, coded, middle.tokens, (token) => tokenPart(token, from, to), name, judge);
    }
  }
}

function checkCodes(
  groups: ScalarGroups,
  { turned, block, codes, scales, offsets, values }: LatentCodes,
  tokens: number,
  exact: (token: number) => Float64Array,
  name: string,
  judge: Judge,
): void {
  const worst = {
    refused: new Worst(),
    offset: new Worst(),
    scale: new Worst(),
    code: new Worst(),
    nearest: new Worst(),
  };
  for (let token = 0; token < tokens; token++) {
    const numbers = turned ? hadamard(exact(token)) : exact(token);
    // What float32 may lose of a sum of all channels.
    const lost = turned ? 1e-6 * Math.hypot(...numbers) : 0;
    for (let from = 0; from < numbers.length; from += block) {
      const at = (token * numbers.length + from) / block;
      const { refused, offset, scale, code, nearest } = blockErrors(groups, {
        x: numbers.slice(from, from + block),
        slack: new Float64Array(block).fill(lost),
        codes: codes.slice(token * numbers.length + from, token * numbers.length + from + block),
        scale: scales[at]!,
        offset: offsets?.[at] ?? 0,
        values,
      });
      const place = (index = 0) => `middle token ${token}, channel ${from + index}`;
      if (refused) worst.refused.add(Number.POSITIVE_INFINITY, () => `${refused.what} ${refused.given}, ${place()}`);
      worst.offset.add(offset, place);
      worst.scale.add(scale, place);
      worst.code.add(code.error, () => place(code.index));
      worst.nearest.add(nearest.error, () => place(nearest.index));
    }
  }
  const codec = groups.codec.name;
  judge.check(`${name}: ${codec} gives what cannot be stored: ${worst.refused.at}`, worst.refused.error, 0);
  judge.check(`${name}: offset, in f16 steps: ${worst.offset.at}`, worst.offset.error, 0);
  judge.check(`${name}: scale, in f16 steps: ${worst.scale.at}`, worst.scale.error, 0);
  judge.check(`${name}: code, from what ${codec} gives for the stored scale: ${worst.code.at}`, worst.code.error, 0);
  judge.check(`${name}: code past the midpoint to the nearest level: ${worst.nearest.at}`, worst.nearest.error, 0);
}

/** Tokens of a stream, from its token `first` on, against those that left the window. */
export function checkStreamedTokens(
  g: LatentGeometry,
  { stream }: LatentParts,
  { first, left }: { readonly first: number; readonly left: readonly Float64Array[] },
  where: string,
  judge: Judge,
): void {
  const { latentDim, headDim, scheme } = g;
  for (const [name, part, from, to] of [
    ['latents', stream.latent, 0, latentDim],
    ['rotary parts', stream.rotary, latentDim, headDim],
  ] as const) {
    for (const [index, token] of left.entries()) {
      const exact = token.subarray(from, to);
      const at = `${where}, stream token ${first + index}`;
      const place = (first + index) * exact.length;
      if (part instanceof Float64Array) {
        const wrong = exact.findIndex((x, i) => !Object.is(x, part[place + i]));
        judge.check(`stream ${name}: not as it came: ${at}, channel ${wrong}`, wrong < 0 ? 0 : 1, 0);
        continue;
      }
      const coded = streamedToken(part, first + index, exact.length);
      const { refused, scale, code } = codedErrors({ scheme, headDim: exact.length }, coded, exact, part.levels);
      judge.check(
        `stream ${name}: scale ${refused} is not a finite number >= 0: ${at}`,
        refused === undefined ? 0 : 1,
        0,
      );
      judge.check(`stream ${name}: scale, in f16 steps: ${at}`, scale.error, scale.bar);
      judge.check(`stream ${name}: code past the midpoint: ${at}, channel ${code.channel}`, code.error, 1e-3);
    }
  }
}

function streamedToken({ codes, norms }: StreamedPart, token: number, d: number) {
  return { codes: codes.subarray(token * d, (token + 1) * d), norm: norms[token]! };
}

/** Attention of drawn queries over all sequences, and the decompressed tokens, against float64 on the same codes. */
export async function checkLatentReads(
  cache: KvCache,
  g: LatentGeometry,
  held: readonly HeldLatents[],
  { query, seed }: { readonly query: QueryDraw; readonly seed: number },
  { judge, bar }: { readonly judge: Judge; readonly bar: number },
): Promise<void> {
  for (const [sequence, { decoded, lengths }] of held.entries()) {
    const bits = await cache.decompress(sequence);
    const expected = decoded.data.map(clampToHalf);
    const actual = halfValues(bits.keys);
    judge.check(
      `decompress: sequence ${sequence}, ${actual.length} numbers`,
      Math.abs(actual.length - expected.length),
      0,
    );
    const { at, by } = worstError(actual, expected, expected.length || 1);
    const place = (index: number) => `token ${Math.floor(index / g.headDim)}, channel ${index % g.headDim}`;
    const step = halfRounding(0) / Math.max(largestOf(expected), 2 ** -24);
    judge.check(`decompress: sequence ${sequence}, ${place(at)}`, by, 2e-3 + step);
    const coded = [lengths.sinkTokens, decoded.tokens - lengths.windowTokens] as const;
    const wrong = expected.findIndex((x, i) => {
      const token = Math.floor(i / g.headDim);
      return (token < coded[0] || token >= coded[1]) && !Object.is(x, actual[i]);
    });
    judge.check(`decompress, copied tokens: sequence ${sequence}, ${place(wrong)}`, wrong < 0 ? 0 : 1, 0);
  }
  const random = seededRandom(seed);
  const { queries, splits } = query;
  const bits = new Uint16Array(held.length * queries * g.heads * g.headDim);
  const expected = new Float64Array(held.length * queries * g.heads * g.latentDim);
  for (const [sequence, { decoded }] of held.entries()) {
    for (let row = 0; row < queries * g.heads; row++) {
      const q = drawQuery(g, query, { decoded: { keys: decoded, values: decoded }, kvHead: 0 }, random);
      const index = sequence * queries * g.heads + row;
      bits.set(halfBits(q), index * g.headDim);
      const after = queries - 1 - Math.floor(row / g.heads);
      const seen = { query: q, tokens: decoded, latentDim: g.latentDim, scale: g.model.scoreScale, after };
      expected.set(attendLatents(seen), index * g.latentDim);
    }
  }
  const output = await cache.attend(bits, { queries, splits });
  judge.check(`attend: ${output.length} numbers`, Math.abs(output.length - expected.length), 0);
  const row = queries * g.heads * g.latentDim;
  for (let sequence = 0; sequence < held.length; sequence++) {
    const judged = expected.subarray(sequence * row, (sequence + 1) * row);
    const { at, by } = worstError(output.subarray(sequence * row, (sequence + 1) * row), judged, row);
    const head = Math.floor(at / g.latentDim) % g.heads;
    const where = `${splits} splits, ${queries} queries, sequence ${sequence}, head ${head}, channel ${at % g.latentDim}`;
    judge.output(`attend: ${where}`, by, bar);
  }
}
