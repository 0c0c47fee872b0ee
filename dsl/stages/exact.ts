import type { CacheGeometry } from '../geometry.js';
import { defineStage } from '../stage.js';
import { cacheWrite, reads, sequenceRecord } from './bindings.js';

/** Copies the sinks and the window of a prompt into the cache, as they are. */
export const exactStage = defineStage<Readonly<Record<never, never>>, CacheGeometry>({
  name: 'exact',
  summary: 'Copy sinks and window in f16.',
  tunables: () => ({}),
  constraints: [],
  kernels: (g) => [
    {
      entry: 'copy_exact',
      summary: 'One word (two channels) of one exact token a thread, for keys and values; the window starts at slot 0.',
      bindings: [
        sequenceRecord,
        reads('keys', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}], after RoPE`),
        reads('values', 'u32', `f16 [${g.kvHeads} KV heads][prompt tokens][${g.headDim}]`),
        cacheWrite,
      ],
      threads: 128,
      grid: [Math.ceil(((g.scheme.sinks + g.scheme.window) * g.width) / 2 / 128), 1, 1],
      constants: {},
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
    },
  ],
});
