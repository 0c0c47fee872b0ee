import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { perToken } from '../../dsl/codecs/quantize.js';
import { gain, tileRotation, transformCode } from '../../dsl/codecs/transformCode.js';
import { asymmetric } from '../../dsl/codecs/uniform.js';
import { uniformNormal } from '../../dsl/codecs/uniformNormal.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, type TiltScheme } from '../../dsl/scheme.js';

/** A geometry of the tilt family. */
export interface TiltCase {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: TiltScheme;
}

interface TiltCaseParts {
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly bits: number;
  readonly tile: 16 | 32 | 64 | 128;
  readonly rangeBlock: 0 | 128 | 256 | 512;
  /** Values of 2 bits in the rows of the keys, unbiased; else 3 bits beside them. */
  readonly packed: boolean;
  readonly gained?: boolean;
  readonly rotaryDim?: number;
  readonly pairing?: 'half' | 'interleaved';
  readonly scoreCap?: number;
  readonly sinks?: number;
  readonly window?: number;
}

function makeCase(parts: TiltCaseParts): TiltCase {
  const { heads, kvHeads, headDim, bits, tile, rangeBlock, packed, gained = packed } = parts;
  const name = `${heads}-${kvHeads}-${headDim}-${bits}-t${tile}`;
  const plain = modelFrom(
    {
      model_type: 'llama',
      hidden_size: heads * headDim,
      num_hidden_layers: 1,
      num_attention_heads: heads,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    name,
  );
  const { rotaryDim = headDim, pairing = 'half', scoreCap } = parts;
  const invFreq = Array.from({ length: rotaryDim / 2 }, (_, j) => 10000 ** ((-2 * j) / rotaryDim));
  const rope = { ...plain.rope, rotaryDim, pairing, invFreq };
  const model = { ...plain, rope, kinds: [{ rope }], ...(scoreCap === undefined ? {} : { scoreCap }) };
  const coded = perToken(packed ? uniformNormal({ bits: 2 }) : asymmetric({ bits: 3 }));
  const scheme = defineScheme({
    name: 'case',
    keys: [unrope(), tileRotation({ tile }), transformCode({ bits, rangeBlock })],
    values: gained ? [hadamard(), coded, gain()] : [hadamard(), coded],
    sinks: parts.sinks ?? 4,
    window: parts.window ?? 8,
    stream: lloydMax({ bits: 4 }),
  });
  return { name, model, scheme };
}

/**
 * Few, as each costs a compile: heads of 32 to 128 with 1 to 7 query heads each, every tile, range blocks and none, values
 * in the rows of the keys and beside them, RoPE on all channels or some in both pairings, capped scores.
 */
export const tiltCases: readonly TiltCase[] = [
  makeCase({ heads: 4, kvHeads: 2, headDim: 32, bits: 1.5, tile: 64, rangeBlock: 128, packed: true }),
  makeCase({ heads: 9, kvHeads: 3, headDim: 64, bits: 1.5, tile: 32, rangeBlock: 0, packed: true, sinks: 0 }),
  makeCase({
    heads: 7,
    kvHeads: 1,
    headDim: 96,
    bits: 2.25,
    tile: 16,
    rangeBlock: 256,
    packed: false,
    rotaryDim: 48,
    pairing: 'interleaved',
    scoreCap: 50,
  }),
  makeCase({ heads: 8, kvHeads: 2, headDim: 128, bits: 1.5, tile: 64, rangeBlock: 128, packed: true, gained: false }),
  makeCase({ heads: 2, kvHeads: 2, headDim: 64, bits: 3, tile: 128, rangeBlock: 128, packed: false, rotaryDim: 32 }),
];
