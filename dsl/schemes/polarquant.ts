import { lloydMax } from '../codecs/lloydMax.js';
import { polar } from '../codecs/polar.js';
import { perChannel, perToken } from '../codecs/quantize.js';
import { asymmetric, midRise } from '../codecs/uniform.js';
import { defineScheme } from '../scheme.js';

/** As many bits for radii as for angles, and as published no sinks and 128 exact tokens. Values are as those of int4. */
const polarQuant = (bits: 3 | 4) =>
  defineScheme({
    name: `polarquant${bits}`,
    keys: [polar(), perChannel(midRise({ bits }), { tokens: 128 })],
    values: [perToken(asymmetric({ bits }))],
    sinks: 0,
    window: 128,
    stream: lloydMax({ bits }),
  });

/** PolarQuant (Wu et al. 2025), PolarQuant33: radii and angles of pairs in groups of 128 tokens. */
export const polarQuant3 = polarQuant(3);
/** PolarQuant44. */
export const polarQuant4 = polarQuant(4);
