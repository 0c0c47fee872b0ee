import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { SequenceLengths } from '../record.js';
import type { LatentCodes, LatentParts, StreamedPart } from './latent.js';
import { emptyTensor, type HeadTensor, vectorAt } from './shapes.js';
import { ShareReader } from './shareReader.js';

/** What codes stand for, over their scales; by code. */
export interface LatentValues {
  readonly latent: Float64Array;
  readonly rotary?: Float64Array;
  readonly streamLatent: Float64Array;
  readonly streamRotary: Float64Array;
}

/**
 * Reads the codes of one sequence of latents out of its share of the cache buffer, bit by bit.
 *
 * @param share the sequence's bytes, as `KvCache.readShare` returns them
 * @param values as the kernels have them (float32)
 */
export function unpackLatent(
  g: LatentGeometry,
  layout: SequenceLayout,
  share: Uint8Array,
  { sinkTokens, middleTokens, streamTokens, windowTokens, windowStart }: SequenceLengths,
  values: LatentValues,
): LatentParts {
  const reader = new ShareReader(layout, share);
  const exact = (name: PartName, tokens: number, slot: (token: number) => number): HeadTensor => {
    const tensor = emptyTensor(1, tokens, g.headDim);
    for (let token = 0; token < tokens; token++) {
      vectorAt(tensor, 0, token).set(reader.halves(name, g.headDim, slot(token) * g.headDim));
    }
    return tensor;
  };
  const coded = (
    { bits, headWords, turned, scaleChannels, scaleRowWords, codec }: ScalarGroups,
    count: number,
    [codes, scales, offsets]: readonly [PartName, PartName, PartName],
    stands: Float64Array,
  ): LatentCodes => {
    const row = { count: count / scaleChannels, words: scaleRowWords };
    return {
      turned,
      block: scaleChannels,
      codes: reader.fieldRows(codes, middleTokens, { count, words: headWords, bits }),
      scales: reader.halfRows(scales, middleTokens, row),
      ...(codec.device.offset ? { offsets: reader.halfRows(offsets, middleTokens, row) } : {}),
      values: stands,
    };
  };
  const norms = reader.halfRows('streamNorms', streamTokens, { count: 2, words: 1 });
  const streamed = (
    name: PartName,
    part: number,
    count: number,
    words: number,
    levels: Float64Array,
  ): StreamedPart => ({
    codes: reader.fieldRows(name, streamTokens, { count, words, bits: g.streamBits }),
    norms: norms.filter((_, i) => i % 2 === part),
    levels,
  });
  const { latentDim, rotaryDim, rotary } = g;
  return {
    latentDim,
    rotaryDim,
    sinks: exact('sinkKeys', sinkTokens, (token) => token),
    middle: {
      tokens: middleTokens,
      latent: coded(g.latent, latentDim, ['latentCodes', 'latentScales', 'latentOffsets'], values.latent),
      rotary: rotary
        ? coded(rotary, rotaryDim, ['rotaryKeys', 'rotaryScales', 'rotaryOffsets'], values.rotary!)
        : reader.halves('rotaryKeys', middleTokens * rotaryDim),
    },
    stream: {
      tokens: streamTokens,
      latent: streamed('streamLatents', 0, latentDim, g.streamLatentWords, values.streamLatent),
      rotary: rotary
        ? streamed('streamRotaryKeys', 1, rotaryDim, g.streamRotaryWords, values.streamRotary)
        : reader.halves('streamRotaryKeys', streamTokens * rotaryDim),
    },
    window: exact('windowKeys', windowTokens, (token) => (windowStart + token) % g.scheme.window),
  };
}
