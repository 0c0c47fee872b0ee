import type { LatentGeometry } from '../latentGeometry.js';
import { defineStage, type FunctionUse } from '../stage.js';
import { cacheWrite, reads, tables, writes } from './bindings.js';

const threads = 128;

/** One decode step's new token for every sequence; the oldest window token is coded into the stream, part by part. */
export const latentAppendStage = defineStage<Readonly<Record<never, never>>, LatentGeometry>({
  name: 'append',
  summary: 'Append one token a sequence and code the one that leaves the window.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => {
    const { device } = g.scheme.stream;
    const of = (name: 'streamed' | 'turned'): Record<string, FunctionUse> => ({
      [`${name}Code`]: {
        name: device.code.name,
        statics: { bits: g.streamBits },
        lookups: { levels: `${name}_level_at` },
      },
      [`${name}Pack`]: { name: 'packWord', statics: { bits: g.streamBits }, lookups: { fields: `${name}_field_at` } },
    });
    return [
      {
        entry: 'append_token',
        summary:
          'One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.',
        bindings: [
          writes('sequences', 'u32', 'records of all sequences; this kernel advances their lengths'),
          reads('new_keys', 'u32', `f16 [sequences][${g.latentDim} latent, ${g.rotaryDim} rotary after RoPE]`),
          tables,
          cacheWrite,
        ],
        threads,
        grid: [{ dimension: 'sequences' }, 1, 1],
        constants: {},
        functions: {
          streamScale: { name: device.scale.name },
          ...of('streamed'),
          ...(g.rotary ? of('turned') : {}),
        },
        // Channels of the token, scratch of the sums, and in WGSL the lengths that all threads read.
        sharedBytes: { fixed: (g.headDim + threads + 4) * 4, dynamic: 0 },
        template: 'latent_append',
      },
    ];
  },
});
