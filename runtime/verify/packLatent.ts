import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { LatentCodes, LatentParts } from '../reference/index.js';
import { fieldRows, halfBytes, halfRows, type PackedPart } from './packedPart.js';

/**
 * Writes the codes of one sequence of latents into its share of the cache buffer: the inverse of `unpackLatent`. Window
 * slots without a token become NaN.
 */
export function packLatent(
  g: LatentGeometry,
  layout: SequenceLayout,
  parts: LatentParts & { readonly windowStart: number },
  share: Uint8Array,
): void {
  for (const [name, bytes] of packedLatent(g, parts)) {
    share.set(bytes, layout.parts.find((part) => part.name === name)!.offset);
  }
}

function* packedLatent(
  g: LatentGeometry,
  parts: LatentParts & { readonly windowStart: number },
): Generator<PackedPart> {
  const { sinks, window, windowStart, stream } = parts;
  yield ['sinkKeys', halfBytes(sinks.data)];
  const slots = new Float64Array(g.scheme.window * g.headDim).fill(Number.NaN);
  for (let token = 0; token < window.tokens; token++) {
    const row = window.data.subarray(token * g.headDim, (token + 1) * g.headDim);
    slots.set(row, ((windowStart + token) % g.scheme.window) * g.headDim);
  }
  yield ['windowKeys', halfBytes(slots)];
  yield* packedLatentMiddle(g, parts);
  const { latent, rotary } = stream;
  const bits = g.streamBits;
  yield ['streamLatents', fieldRows(latent.codes, { count: g.latentDim, words: g.streamLatentWords, bits })];
  if (rotary instanceof Float64Array) yield ['streamRotaryKeys', halfBytes(rotary)];
  else yield ['streamRotaryKeys', fieldRows(rotary.codes, { count: g.rotaryDim, words: g.streamRotaryWords, bits })];
  const norms = Float64Array.from({ length: stream.tokens * 2 }, (_, i) => {
    if (i % 2 === 0) return latent.norms[i / 2]!;
    return rotary instanceof Float64Array ? 0 : rotary.norms[(i - 1) / 2]!;
  });
  yield ['streamNorms', halfBytes(norms)];
}

/** What the prompt's middle became: also what lies beside the fields of a row, which is zero. */
export function* packedLatentMiddle(g: LatentGeometry, { middle }: LatentParts): Generator<PackedPart> {
  yield* packed(g.latent, g.latentDim, middle.latent, ['latentCodes', 'latentScales', 'latentOffsets']);
  if (middle.rotary instanceof Float64Array) yield ['rotaryKeys', halfBytes(middle.rotary)];
  else yield* packed(g.rotary!, g.rotaryDim, middle.rotary, ['rotaryKeys', 'rotaryScales', 'rotaryOffsets']);
}

function* packed(
  { bits, headWords, scaleChannels, scaleRowWords }: ScalarGroups,
  count: number,
  { codes, scales, offsets }: LatentCodes,
  names: readonly [PartName, PartName, PartName],
): Generator<PackedPart> {
  const row = { count: count / scaleChannels, words: scaleRowWords };
  yield [names[0], fieldRows(codes, { count, words: headWords, bits })];
  yield [names[1], halfRows(scales, row)];
  if (offsets) yield [names[2], halfRows(offsets, row)];
}
