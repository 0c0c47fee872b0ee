import type { CacheGeometry } from '../geometry.js';
import { defineStage, type FunctionUse } from '../stage.js';
import { cacheWrite, reads, tables, writes } from './bindings.js';

/** The stream codec's device functions, under the names every template calls. */
export function streamFunctions(g: CacheGeometry): Record<string, FunctionUse> {
  const { device } = g.scheme.stream;
  const levels = { levels: 'level_at' };
  return {
    streamScale: { name: device.scale.name },
    streamCode: { name: device.code.name, statics: { bits: g.streamBits }, lookups: levels },
    streamValue: { name: device.value.name, lookups: levels },
    streamPack: { name: 'packWord', statics: { bits: g.streamBits }, lookups: { fields: 'stream_field_at' } },
    streamUnpack: { name: 'unpackField', statics: { bits: g.streamBits }, lookups: { words: 'stream_word_at' } },
  };
}

/** One decode step's new token for every sequence; the oldest window token is coded into the stream. */
export const appendStage = defineStage<Readonly<Record<never, never>>, CacheGeometry>({
  name: 'append',
  summary: 'Append one token a sequence and code the one that leaves the window.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => {
    const { streamScale, streamCode, streamPack } = streamFunctions(g);
    return [
      {
        entry: 'append_token',
        summary:
          'One block a sequence. A full window gives its oldest token to the stream; a full stream refuses the new token and counts it.',
        bindings: [
          writes('sequences', 'u32', 'records of all sequences; this kernel advances their lengths'),
          reads('new_keys', 'u32', `f16 [sequences][${g.kvHeads} KV heads][${g.headDim}], after RoPE`),
          reads('new_values', 'u32', `f16 [sequences][${g.kvHeads} KV heads][${g.headDim}]`),
          tables,
          cacheWrite,
        ],
        threads: Math.ceil(g.headDim / 32) * 32,
        grid: [{ dimension: 'sequences' }, 1, 1],
        constants: {},
        functions: {
          butterfly: { name: 'butterfly' },
          streamScale: streamScale!,
          streamCode: streamCode!,
          streamPack: streamPack!,
        },
        sharedBytes: {
          fixed: g.headDim * 4 * 2 + Math.ceil(g.headDim / 32) * 32 * 4 + Math.max(4, g.normWords) * 4,
          dynamic: 0,
        },
      },
    ];
  },
});
