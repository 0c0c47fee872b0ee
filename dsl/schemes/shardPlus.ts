import { channelMax } from '../codecs/channelMax.js';
import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { pca } from '../codecs/pca.js';
import { unrope } from '../codecs/unrope.js';
import { vq } from '../codecs/vq.js';
import { defineScheme } from '../scheme.js';

/**
 * Shard's layout with keys weighted by the prompt's queries, widths that each prompt allocates, mid-rise codes and
 * unbiased values. Prefill needs the queries.
 */
export const shardPlus = defineScheme({
  name: 'shard-plus',
  keys: [unrope(), pca({ rank: 'auto', bits: { budget: 'auto' }, group: 16, weight: 'queries' })],
  values: [hadamard(), channelMax(), vq({ channels: 4, entries: 256, unbiased: true })],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 8 }),
});
