import { nf4 } from '../codecs/nf4.js';
import { perToken } from '../codecs/quantize.js';
import { defineScheme } from '../scheme.js';

/** NormalFloat (QLoRA, Dettmers et al. 2023) with its block of 64 numbers: 64 channels of one token and KV head. */
export const normalFloat4 = defineScheme({
  name: 'nf4',
  keys: [perToken(nf4(), { channels: 64 })],
  values: [perToken(nf4(), { channels: 64 })],
  sinks: 4,
  window: 64,
  stream: nf4(),
});
