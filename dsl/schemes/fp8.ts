import { float8 } from '../codecs/float8.js';
import { perHead } from '../codecs/quantize.js';
import { defineScheme } from '../scheme.js';

const fp8 = (format: 'e4m3' | 'e5m2') =>
  defineScheme({
    name: `fp8-${format}`,
    keys: [perHead(float8({ format }))],
    values: [perHead(float8({ format }))],
    sinks: 4,
    window: 64,
    stream: float8({ format }),
  });

/** FP8 with 3 bits of mantissa (Micikevicius et al. 2022) and a scale for each KV head, as serving engines keep it. */
export const fp8E4M3 = fp8('e4m3');
/** FP8 with 2 bits of mantissa: the same bytes, twice the rounding error, 2^16 times the range. */
export const fp8E5M2 = fp8('e5m2');
