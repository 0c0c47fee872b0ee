import { lloydMax } from '../codecs/lloydMax.js';
import { nuq } from '../codecs/nuq.js';
import { outliers } from '../codecs/outliers.js';
import { perChannel, perToken } from '../codecs/quantize.js';
import { unrope } from '../codecs/unrope.js';
import { defineScheme } from '../scheme.js';

/** One number in a hundred is kept beside the codes: 2 of a head of 128. The window is that of other schemes: none is published. */
const kvquant = (bits: 2 | 3 | 4) =>
  defineScheme({
    name: `kvquant${bits}`,
    keys: [unrope(), perChannel(nuq({ bits }), { tokens: 'prompt', trim: 0.005 }), outliers({ cap: 2 })],
    values: [perToken(nuq({ bits }), { channels: 'head', trim: 0.01 }), outliers({ cap: 2 })],
    sinks: 5,
    window: 64,
    stream: lloydMax({ bits }),
  });

/** KVQuant (Hooper et al. 2024), nuq2-1%, with the levels of a Gaussian: those of a model come from `fitLevels`. */
export const kvquant2 = kvquant(2);
export const kvquant3 = kvquant(3);
export const kvquant4 = kvquant(4);
