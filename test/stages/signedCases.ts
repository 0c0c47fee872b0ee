import {
  asymmetric,
  defineScheme,
  hadamard,
  lloydMax,
  type ModelShape,
  midRise,
  modelFrom,
  perChannel,
  perToken,
  qjl,
} from '../../dsl/index.js';
import type { ScalarScheme } from '../../dsl/scheme.js';

/** A scheme that keeps the signs of what its codes of keys leave, for one model. */
export interface SignedCase {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: ScalarScheme;
}

function modelOf(kvHeads: number, groupSize: number, headDim: number): ModelShape {
  return modelFrom(
    {
      model_type: 'llama',
      hidden_size: kvHeads * groupSize * headDim,
      num_hidden_layers: 1,
      num_attention_heads: kvHeads * groupSize,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      max_position_embeddings: 4096,
    },
    'case',
  );
}

const segments = { sinks: 4, window: 8, stream: lloydMax({ bits: 4 }) } as const;

/** Between them: one word of signs a vector and four, an odd number of KV heads, codes with an offset and without. */
export const signedCases: readonly SignedCase[] = [
  {
    name: 'norms, 9-3-32',
    model: modelOf(3, 3, 32),
    scheme: defineScheme({
      name: 'norms',
      keys: [hadamard(), perToken(lloydMax({ bits: 2 })), qjl()],
      values: [hadamard(), perToken(lloydMax({ bits: 3 }))],
      ...segments,
    }),
  },
  {
    name: 'by channel, 8-2-128',
    model: modelOf(2, 4, 128),
    scheme: defineScheme({
      name: 'channels',
      keys: [hadamard(), perChannel(asymmetric({ bits: 2 }), { tokens: 16 }), qjl({ seed: 9 })],
      values: [perToken(midRise({ bits: 4 }))],
      ...segments,
    }),
  },
];
