import type { LoadedKernels } from '../../../runtime/kernels.js';
import { unbiasedGain } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, largestOf, numbers, worstDifference } from '../../../runtime/verify/draws.js';
import { clampToHalf, halfRounding, type Judge, Worst } from '../../../runtime/verify/judge.js';
import { asFloats, asHalfBits, runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { middleSetting, writtenParts } from './setting.js';

const TILE = 32;

const scalesOf = (width: number, factor: number) =>
  Float32Array.from(halfValues(halfBits(numbers({ kind: 'normal', seed: 28 }, 1, width))), (x) =>
    Math.min(65504, factor * (0.5 + Math.abs(x))),
  );

/** Two tiles of tokens with a tail, and one token. */
export async function driveProducts(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  for (const middle of [45, 1]) {
    const { record, layout, cache } = middleSetting(g, middle);
    const rotated = Float32Array.from(numbers({ kind: 'normal', seed: 29 }, middle, g.width));
    const codebookBits = halfBits(numbers({ kind: 'normal', seed: 30 }, g.entries, g.channels));
    const codes = Uint8Array.from({ length: rotated.length / g.channels }, (_, i) => (i * 7) % g.entries);
    const offsetOf = (name: string) => layout.parts.find((part) => part.name === name)!.offset;
    cache.set(codes, offsetOf('valueCodes'));
    cache.set(new Uint8Array(codebookBits.buffer), offsetOf('codebook'));
    const scales = scalesOf(g.width, 1);
    const tiles = Math.ceil(middle / TILE);
    const outputs = await runKernel(
      kernels,
      'value_products',
      { middleTokens: middle },
      {
        sequence: record,
        rotated,
        channel_scales: scales,
        cache,
        partial_products: { bytes: tiles * 2 * g.width * 4 },
      },
    );
    const codebook = halfValues(codebookBits);
    const expected = new Float64Array(tiles * 2 * g.width);
    for (const [at, value] of rotated.entries()) {
      const [token, channel] = [Math.floor(at / g.width), at % g.width];
      const entry = codes[Math.floor(at / g.channels)]!;
      const row = Math.floor(token / TILE) * 2 * g.width + channel;
      expected[row]! += value ** 2;
      expected[row + g.width]! += value * scales[channel]! * codebook[entry * g.channels + (at % g.channels)]!;
    }
    const { at, by } = worstDifference(asFloats(outputs.partial_products!), expected);
    judge.check(`products of ${middle} tokens, entry ${at}`, by, 1e-5 * largestOf(expected));
  }
}

/** Gains within and beyond their limits, products that say nothing, no token, and scales that f16 hardly holds. */
export async function driveGains(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  for (const [middle, factor] of [
    [70, 1],
    [0, 1],
    [5, 6e4],
  ] as const) {
    const { record, layout, cache } = middleSetting(g, middle);
    const tiles = Math.ceil(middle / TILE);
    const partial = Float32Array.from({ length: tiles * 2 * g.width }, (_, at) => {
      const [row, channel] = [Math.floor(at / g.width), at % g.width];
      if (row % 2 === 0) return 4 + row;
      return channel % 6 === 4 ? -1 : channel % 6 === 5 ? 0.125 : 1.5 * (1 + (channel % 6));
    });
    const scales = scalesOf(g.width, factor);
    const outputs = await runKernel(
      kernels,
      'unbias_values',
      {},
      // No token leaves no tile, but a buffer has a word.
      { sequence: record, partial_products: partial, channel_scales: scales, cache },
    );
    const [stored] = writtenParts(layout, outputs.cache!, ['channelMax'], judge);
    const worst = new Worst();
    for (const [channel, scale] of halfValues(asHalfBits(stored!)).entries()) {
      let [squares, products] = [0, 0];
      for (let tile = 0; tile < tiles; tile++) {
        squares += partial[tile * 2 * g.width + channel]!;
        products += partial[(tile * 2 + 1) * g.width + channel]!;
      }
      const exact = clampToHalf(scales[channel]! * unbiasedGain(squares, products));
      worst.add(Math.abs(scale - exact) / (1.01 * halfRounding(exact)), () => `channel ${channel}`);
    }
    judge.check(`scales of ${middle} tokens, over their rounding: ${worst.at}`, worst.error, 1);
  }
}
