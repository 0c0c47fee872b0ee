import { lloydMax } from '../codecs/lloydMax.js';
import { perChannel, perToken } from '../codecs/quantize.js';
import { asymmetric } from '../codecs/uniform.js';
import { defineScheme } from '../scheme.js';

/** The last 128 tokens are exact, the residual length of the experiments, and there are no sinks. */
const kivi = (bits: 2 | 4) =>
  defineScheme({
    name: `kivi${bits}`,
    keys: [perChannel(asymmetric({ bits }), { tokens: 32 })],
    values: [perToken(asymmetric({ bits }), { channels: 32 })],
    sinks: 0,
    window: 128,
    stream: lloydMax({ bits }),
  });

/** KIVI (Liu et al. 2024) with 2 bits: keys by channel in groups of 32 tokens, values by token in groups of 32 channels. */
export const kivi2 = kivi(2);
/** KIVI (Liu et al. 2024) with 4 bits. */
export const kivi4 = kivi(4);
