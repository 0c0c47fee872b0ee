import {
  asymmetric,
  defineScheme,
  hadamard,
  lloydMax,
  type ModelShape,
  modelFrom,
  nuq,
  outliers,
  perChannel,
  perToken,
  symmetric,
  unrope,
} from '../../dsl/index.js';
import type { ScalarScheme } from '../../dsl/scheme.js';

/** A scheme that keeps outliers beside its codes, for one model. */
export interface OutlierCase {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: ScalarScheme;
}

function modelOf(kvHeads: number, groupSize: number, headDim: number, rotaryDim = headDim): ModelShape {
  const plain = modelFrom(
    {
      model_type: 'llama',
      hidden_size: kvHeads * groupSize * headDim,
      num_hidden_layers: 1,
      num_attention_heads: kvHeads * groupSize,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    'case',
  );
  if (rotaryDim === headDim) return plain;
  const invFreq = Array.from({ length: rotaryDim / 2 }, (_, j) => 10000 ** ((-2 * j) / rotaryDim));
  const rope = { ...plain.rope, rotaryDim, pairing: 'interleaved', invFreq } as const;
  return { ...plain, rope, kinds: [{ rope }] };
}

const segments = { sinks: 4, window: 8, stream: lloydMax({ bits: 4 }) } as const;

/**
 * Ranges leave out a number at each end of 37 tokens, and of one token more than there is room for. Between them: every
 * form of a vector, RoPE on some channels and on all, ranges with one end at the offset and with both beyond it, one
 * outlier a token and eight, and keys alone that have them.
 */
export const outlierCases: readonly OutlierCase[] = [
  {
    name: 'nuq2 before RoPE, partial rotary, 9-3-64',
    model: modelOf(3, 3, 64, 24),
    scheme: defineScheme({
      name: 'nuq2',
      keys: [unrope(), perChannel(nuq({ bits: 2 }), { trim: 0.05 }), outliers({ cap: 2 })],
      values: [perToken(nuq({ bits: 2 }), { trim: 0.05 }), outliers({ cap: 3 })],
      ...segments,
    }),
  },
  {
    name: 'turned, 6-2-96',
    model: modelOf(2, 3, 96),
    scheme: defineScheme({
      name: 'turned',
      keys: [hadamard(), perToken(lloydMax({ bits: 3 }), { trim: 0.03 }), outliers({ cap: 8 })],
      values: [hadamard(), perChannel(asymmetric({ bits: 4 }), { tokens: 16, trim: 0.1 }), outliers({ cap: 1 })],
      ...segments,
    }),
  },
  {
    name: 'keys alone, 5-1-128',
    model: modelOf(1, 5, 128),
    scheme: defineScheme({
      name: 'alone',
      keys: [perChannel(symmetric({ bits: 3 }), { tokens: 32, trim: 0.04 }), outliers({ cap: 1 })],
      values: [perToken(asymmetric({ bits: 2 }), { channels: 32 })],
      ...segments,
    }),
  },
];
