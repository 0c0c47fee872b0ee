import {
  asymmetric,
  defineScheme,
  float8,
  hadamard,
  type LatentScheme,
  lloydMax,
  modelFrom,
  perToken,
  symmetric,
} from '../../dsl/index.js';

const config = {
  model_type: 'deepseek_v3',
  hidden_size: 96,
  num_hidden_layers: 1,
  num_attention_heads: 4,
  kv_lora_rank: 32,
  qk_nope_head_dim: 16,
  qk_rope_head_dim: 16,
  max_position_embeddings: 4096,
};

/** Latents of 32 channels and rotary parts of 16; four heads in one block. */
export const tinyLatents = modelFrom(config, 'tiny-latents');
/** 18 heads in two blocks of nine; latents of 48 channels, so that a Hadamard block is 16 of them. */
export const oddLatents = modelFrom({ ...config, num_attention_heads: 18, kv_lora_rank: 48 }, 'odd-latents');

/** One of everything: a scale a part and several, an odd number of them, offsets, a transform, exact rotary parts. */
export const latentSchemes: readonly LatentScheme[] = [
  defineScheme({
    name: 'whole',
    latent: [perToken(symmetric({ bits: 8 }), { channels: 16 })],
    rotary: [perToken(symmetric({ bits: 8 }))],
    sinks: 4,
    window: 8,
    stream: symmetric({ bits: 8 }),
  }),
  defineScheme({
    name: 'turned',
    latent: [hadamard(), perToken(asymmetric({ bits: 4 }), { channels: 16 })],
    rotary: [perToken(asymmetric({ bits: 3 }))],
    sinks: 2,
    window: 7,
    stream: lloydMax({ bits: 4 }),
  }),
  defineScheme({
    name: 'exact-rotary',
    latent: [perToken(float8({ format: 'e4m3' }))],
    rotary: 'exact',
    sinks: 0,
    window: 5,
    stream: lloydMax({ bits: 3 }),
  }),
];

/** Latents of two warps' channels and rotary parts of a product's: 18 heads in two blocks of nine. */
export const wideLatents = modelFrom(
  { ...config, num_attention_heads: 18, kv_lora_rank: 128, qk_rope_head_dim: 32 },
  'wide-latents',
);

/** What tensor cores take: a scale for each warp's channels, offsets and exact rotary parts, 8-bit floats. */
export const productSchemes: readonly LatentScheme[] = [
  defineScheme({
    name: 'runs',
    latent: [perToken(asymmetric({ bits: 8 }), { channels: 64 })],
    rotary: [perToken(asymmetric({ bits: 4 }))],
    sinks: 4,
    window: 8,
    stream: lloydMax({ bits: 8 }),
  }),
  defineScheme({
    name: 'offsets',
    latent: [perToken(asymmetric({ bits: 4 }), { channels: 128 })],
    rotary: 'exact',
    sinks: 2,
    window: 6,
    stream: symmetric({ bits: 8 }),
  }),
  defineScheme({
    name: 'floats',
    latent: [perToken(float8({ format: 'e4m3' }))],
    rotary: [perToken(float8({ format: 'e4m3' }))],
    sinks: 0,
    window: 70,
    stream: float8({ format: 'e4m3' }),
  }),
  defineScheme({
    name: 'turned-runs',
    latent: [hadamard(), perToken(asymmetric({ bits: 4 }), { channels: 64 })],
    rotary: [perToken(symmetric({ bits: 8 }))],
    sinks: 3,
    window: 6,
    stream: lloydMax({ bits: 4 }),
  }),
];
