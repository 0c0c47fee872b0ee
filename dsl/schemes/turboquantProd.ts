import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { qjl } from '../codecs/qjl.js';
import { perToken } from '../codecs/quantize.js';
import { defineScheme } from '../scheme.js';

/**
 * TurboQuant (Zandieh et al. 2025), its quantizer of unbiased products: of 4 bits of a key one is the sign of a projection
 * of what the other three leave. Values need no products, and have 4 bits of least squared error.
 */
export const turboQuantProd4 = defineScheme({
  name: 'turboquant-prod4',
  keys: [hadamard(), perToken(lloydMax({ bits: 3 })), qjl()],
  values: [hadamard(), perToken(lloydMax({ bits: 4 }))],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 4 }),
});
