import type { LowRankGeometry } from '../../dsl/geometry.js';
import { pairChannels, type ShardMiddle, toHalf } from '../reference/index.js';
import type { SequenceDraw } from './attendDraws.js';
import type { Drawing } from './drawParts.js';

/**
 * A middle of random codes: what its tokens share is drawn now, their codes with the call of the result, so that a seed
 * stands for the same case wherever a sequence draws its other segments.
 */
export function drawShardMiddle(
  g: LowRankGeometry,
  { sinks, middle, magnitude }: SequenceDraw,
  { random, normal, halves, below }: Drawing,
): () => ShardMiddle {
  const key = () => magnitude * normal();
  const meanFactor = random() < 0.3 ? 0 : 1;
  const groupBits = drawWidths(g, below);
  const widthOf = Array.from({ length: g.rank }, (_, r) => {
    if (g.allocatedGroups > 0) return groupBits[Math.floor(r / 16)]!;
    const group = g.keyGroups.find(({ firstComponent, components }) => r < firstComponent + components)!;
    return group.bits;
  });
  // As from an encoder: a component without bits has no scale; basis columns have unit length, on average. Mid-rise
  // codes reach half a step further down than up, and there are as many of them as fields.
  const limitOf = widthOf.map((bits) => (bits === 0 ? 0 : 2 ** (bits - 1) - (g.allocatedGroups > 0 ? 0 : 1)));
  const coefficientScales = Float64Array.from(limitOf, (limit) =>
    limit === 0 ? 0 : toHalf((magnitude * random() * Math.sqrt(g.width)) / limit),
  );
  const weights = drawWeights(g, random);
  // The basis is of weighted keys: of an entry as small as the least weight, rounding leaves 1 at most. Anything more
  // would stand for keys beyond f16.
  const basisCodes = Int8Array.from({ length: g.width * g.rank }, (_, i) => {
    const code = below(255) - 127;
    return weights[Math.floor(i / g.rank)]! > toHalf(leastWeight) ? code : Math.round(code / 127);
  });
  return () => ({
    tokens: middle,
    firstPosition: sinks,
    rank: g.rank,
    coefficientCodes: Int32Array.from({ length: middle * g.rank }, (_, i) => {
      const limit = limitOf[i % g.rank]!;
      return below(2 * limit + (g.allocatedGroups > 0 ? 0 : 1)) - limit;
    }),
    codeOffset: g.allocatedGroups > 0 ? 0.5 : 0,
    ...(g.allocatedGroups > 0 ? { groupBits } : {}),
    coefficientScales,
    basisCodes,
    basisScales: halves(g.rank, () => (0.5 + random()) / 73 / Math.sqrt(g.width)),
    mean: halves(g.width, () => meanFactor * key()),
    weights,
    channels: g.channels,
    valueCodes: Uint16Array.from({ length: (middle * g.width) / g.channels }, () => below(g.entries)),
    codebook: halves(g.entries * g.channels, () => random() * 2 - 1),
    channelMax: halves(g.width, () => Math.exp(normal())),
  });
}

/** Widths as an encoder may find them: in no order, and not always all of the budget. */
function drawWidths(g: LowRankGeometry, below: (limit: number) => number): number[] {
  const widths = [0, 1, 2, 3, 4, 5, 6, 8];
  let left = g.keyRowWords * 2;
  return Array.from({ length: g.allocatedGroups }, () => {
    const bits = widths[below(widths.length)]!;
    if (bits > left) return 0;
    left -= bits;
    return bits;
  });
}

/** What an encoder gives channels that the queries do not ask for. */
const leastWeight = 1e-3;

/** Between 1/8 and 1, for some channels the least that an encoder gives, and the same for both channels of a rotary pair. */
function drawWeights(g: LowRankGeometry, random: () => number): Float64Array {
  const weights = new Float64Array(g.width).fill(1);
  if (!g.weighted) return weights;
  // Keys are largest where weights are least: in every other draw all channels have a say.
  const atLeast = random() < 0.5 ? 0 : 0.1;
  for (let i = 0; i < g.width; i++) weights[i] = toHalf(random() < atLeast ? leastWeight : 2 ** (-3 * random()));
  for (let head = 0; head < g.kvHeads; head++) {
    for (let j = 0; j < g.rotaryPairs; j++) {
      const [a, b] = pairChannels(g.model.rope, j);
      weights[head * g.headDim + b] = weights[head * g.headDim + a]!;
    }
  }
  return weights;
}
