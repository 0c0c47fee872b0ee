import { channelMax, defineScheme, hadamard, lloydMax, pca, unrope, vq } from 'kvforge';

export default defineScheme({
  name: 'my-scheme',
  keys: [unrope(), pca({ rank: 64, bits: [6, 2], group: 32 })],
  values: [hadamard(), channelMax(), vq({ channels: 4, entries: 64 })],
  sinks: 4,
  window: 32,
  stream: lloydMax({ bits: 4 }),
});
