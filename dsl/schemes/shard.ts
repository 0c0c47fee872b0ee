import { channelMax } from '../codecs/channelMax.js';
import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { pca } from '../codecs/pca.js';
import { unrope } from '../codecs/unrope.js';
import { vq } from '../codecs/vq.js';
import { defineScheme } from '../scheme.js';

/** Shard (Garg and Sathananthan 2026): joint low-rank int4 keys, vector-quantised values, 10x at 8K tokens. */
export const shard = defineScheme({
  name: 'shard',
  keys: [unrope(), pca({ rank: 'auto', bits: 4, group: 64 })],
  values: [hadamard(), channelMax(), vq({ channels: 4, entries: 256 })],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 8 }),
});
