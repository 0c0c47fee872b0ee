import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import type { ScalarGeometry } from '../../dsl/geometry.js';
import { type DecodedTokens, KvCache } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { hadamard } from '../../runtime/reference/hadamard.js';
import { polarForm, unrotate } from '../../runtime/reference/index.js';
import { halfValues, largestOf, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { deviceNames, openDevice, targetOf } from '../stages/harness.js';
import { type Operand, scalarCases } from '../stages/scalarCases.js';
import { halves } from './cacheCase.js';

const operands = ['keys', 'values'] as const;
/** Middle tokens: a whole row of scales of every scheme, and one that is not full. */
const MIDDLE = 37;
/** Tokens generated after the prompt: more than the window holds, so that prompt and generated ones have left it. */
const GENERATED = 11;

/** Vector `token` of head `head` in [heads][tokens][head dim]. */
function vectorOf(g: ScalarGeometry, bits: Uint16Array, tokens: number, head: number, token: number): Float64Array {
  const from = (head * tokens + token) * g.headDim;
  return halfValues(bits.slice(from, from + g.headDim));
}

/** The middle tokens as they are coded, [token][width]. */
function middleOf(g: ScalarGeometry, operand: Operand, bits: Uint16Array, tokens: number): Float64Array {
  const { turned, unrotated, polar } = g[operand];
  const all = new Float64Array(MIDDLE * g.width);
  for (let head = 0; head < g.kvHeads; head++) {
    for (let token = 0; token < MIDDLE; token++) {
      const position = g.scheme.sinks + token;
      const x = vectorOf(g, bits, tokens, head, position);
      const paired = unrotated ? unrotate(x, position, g.model.rope) : polar ? polarForm(x, g.model.rope) : x;
      const coded = turned ? hadamard(x) : paired;
      all.set(coded, token * g.width + head * g.headDim);
    }
  }
  return all;
}

/**
 * How far a number may lie from what its code stands for: half a step between neighbouring codes, found from the
 * numbers of its block alone. Codecs whose steps differ from code to code give no such bound.
 */
function halfSteps(g: ScalarGeometry, operand: Operand, coded: Float64Array): Float64Array | undefined {
  const { codec, bits, scaleTokens, scaleChannels } = g[operand];
  const blockOf = (place: number) => {
    const row = scaleTokens === 0 ? 0 : Math.floor(Math.floor(place / g.width) / scaleTokens);
    return `${row} ${Math.floor((place % g.width) / scaleChannels)}`;
  };
  const ends = new Map<string, { least: number; greatest: number }>();
  coded.forEach((x, place) => {
    const { least, greatest } = ends.get(blockOf(place)) ?? { least: x, greatest: x };
    ends.set(blockOf(place), { least: Math.min(least, x), greatest: Math.max(greatest, x) });
  });
  const spans = coded.map((_, place) => {
    const { least, greatest } = ends.get(blockOf(place))!;
    return codec.name === 'symmetric' ? 2 * Math.max(-least, greatest) : greatest - least;
  });
  // Codes at both ends of the span: all of them, or all but the one below the most negative.
  if (codec.name === 'symmetric') return spans.map((span) => span / (2 ** bits - 2) / 2);
  if (codec.name === 'asymmetric') return spans.map((span) => span / (2 ** bits - 1) / 2);
  if (codec.name === 'midRise') return spans.map((span) => span / 2 ** bits / 2);
  return undefined;
}

describe.each(deviceNames)('a cache of scalar codes on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(scalarCases)('$name', ({ scheme, model, g }) => {
    const { sinks, window } = scheme;
    const tokens = sinks + MIDDLE + window;
    const all = tokens + GENERATED;
    const prompt = {
      keys: halves(tokens * g.width, 1),
      values: halves(tokens * g.width, 2),
      tokens,
    };
    const generated = { keys: halves(GENERATED * g.width, 3), values: halves(GENERATED * g.width, 4) };
    const query = halves(g.heads * g.headDim, 5);
    let decoded: DecodedTokens;
    let output: Float32Array;
    beforeAll(async () => {
      const kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)));
      const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: GENERATED });
      await cache.prefill(0, prompt);
      for (let token = 0; token < GENERATED; token++) {
        const row = (data: Uint16Array) => data.slice(token * g.width, (token + 1) * g.width);
        await cache.append(row(generated.keys), row(generated.values));
      }
      output = await cache.attend(query);
      decoded = await cache.decompress(0);
      await cache.release();
    }, 60_000);

    test.each(operands)('keeps the %s of both ends as they are', (operand) => {
      expect(decoded.tokens).toBe(all);
      for (let head = 0; head < g.kvHeads; head++) {
        for (let token = 0; token < sinks; token++) {
          const given = vectorOf(g, prompt[operand], tokens, head, token);
          expect(vectorOf(g, decoded[operand], all, head, token)).toEqual(given);
        }
        for (let token = GENERATED - window; token < GENERATED; token++) {
          const from = token * g.width + head * g.headDim;
          const given = halfValues(generated[operand].slice(from, from + g.headDim));
          expect(vectorOf(g, decoded[operand], all, head, tokens + token)).toEqual(given);
        }
      }
    });

    test.each(operands)('keeps the %s of the middle to half a step of their codes', (operand) => {
      const coded = middleOf(g, operand, prompt[operand], tokens);
      const bounds = halfSteps(g, operand, coded);
      if (!bounds) return;
      const kept = middleOf(g, operand, decoded[operand], all);
      // Scale, offset and every decoded number are rounded to f16.
      const slack = largestOf(coded) * 2 ** -9;
      const over = kept.map((x, place) => Math.abs(x - coded[place]!) - bounds[place]!);
      expect(Math.max(...over)).toBeLessThanOrEqual(slack);
      // The codes reach the bound: it is not that of a coarser code.
      expect(Math.max(...over.map((by, place) => by + 0.2 * bounds[place]!))).toBeGreaterThan(0);
    });

    test('attends as over what it decompresses', () => {
      const tensor = (operand: Operand) => ({
        heads: g.kvHeads,
        tokens: all,
        channels: g.headDim,
        data: halfValues(decoded[operand]),
      });
      const cache = { keys: tensor('keys'), values: tensor('values') };
      const expected = new Float64Array(g.heads * g.headDim);
      for (let head = 0; head < g.heads; head++) {
        const from = head * g.headDim;
        const own = {
          query: halfValues(query.slice(from, from + g.headDim)),
          kvHead: Math.floor(head / g.groupSize),
          after: 0,
          slidingWindow: 0,
        };
        expected.set(attendVisible(g, cache, own), from);
      }
      // Decompressed numbers are rounded to f16.
      expect(worstError(output, expected, expected.length).by).toBeLessThanOrEqual(1e-3);
    });
  });
});
