import {
  asymmetric,
  defineScheme,
  hadamard,
  lloydMax,
  type ModelShape,
  midRise,
  modelFrom,
  nuq,
  outliers,
  perChannel,
  perToken,
  polar,
} from '../../dsl/index.js';
import type { ScalarScheme } from '../../dsl/scheme.js';

/** A scheme that codes keys as radius and angle, for one model. */
export interface PolarCase {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: ScalarScheme;
}

function modelOf(kvHeads: number, groupSize: number, headDim: number, partial = {}): ModelShape {
  return modelFrom(
    {
      model_type: 'llama',
      hidden_size: kvHeads * groupSize * headDim,
      num_hidden_layers: 1,
      num_attention_heads: kvHeads * groupSize,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      max_position_embeddings: 4096,
      ...partial,
    },
    'case',
  );
}

const segments = { sinks: 2, window: 8, stream: lloydMax({ bits: 4 }) } as const;

/**
 * Between them: channels that RoPE leaves alone and none, both pairings, codes with an offset and with radii below zero,
 * the scales of some tokens and of all, and outliers of radii and of angles.
 */
export const polarCases: readonly PolarCase[] = [
  {
    name: 'intervals of 16 tokens, 6-2-96',
    model: modelOf(2, 3, 96),
    scheme: defineScheme({
      name: 'intervals',
      keys: [polar(), perChannel(midRise({ bits: 4 }), { tokens: 16 })],
      values: [perToken(asymmetric({ bits: 4 }))],
      ...segments,
    }),
  },
  {
    name: 'norms of 32 tokens, partial rotary, 9-3-64',
    model: modelOf(3, 3, 64, { model_type: 'glm', partial_rotary_factor: 0.5 }),
    scheme: defineScheme({
      name: 'norms',
      keys: [polar(), perChannel(lloydMax({ bits: 3 }), { tokens: 32 })],
      values: [hadamard(), perToken(midRise({ bits: 2 }))],
      ...segments,
    }),
  },
  {
    name: 'outliers of the prompt, 5-1-128',
    model: modelOf(1, 5, 128),
    scheme: defineScheme({
      name: 'outliers',
      keys: [polar(), perChannel(nuq({ bits: 2 }), { trim: 0.05 }), outliers({ cap: 3 })],
      values: [perChannel(midRise({ bits: 3 }), { tokens: 16 })],
      ...segments,
    }),
  },
];
