import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { perToken } from '../codecs/quantize.js';
import { defineScheme } from '../scheme.js';

type Bits = 2 | 3 | 4 | 8;
/** The stream has one codec for keys and values: that of the keys, which never have fewer bits. */
const turboQuant = (name: string, { keys, values }: Record<'keys' | 'values', Bits>) =>
  defineScheme({
    name,
    keys: [hadamard(), perToken(lloydMax({ bits: keys }))],
    values: [hadamard(), perToken(lloydMax({ bits: values }))],
    sinks: 4,
    window: 64,
    stream: lloydMax({ bits: keys }),
  });

/** TurboQuant (Zandieh et al. 2025), its quantizer of least squared error: a norm a vector, 2 bits a channel. */
export const turboQuant2 = turboQuant('turboquant2', { keys: 2, values: 2 });
export const turboQuant3 = turboQuant('turboquant3', { keys: 3, values: 3 });
export const turboQuant4 = turboQuant('turboquant4', { keys: 4, values: 4 });
/** Keys with 8 bits, values with 4: errors of keys are those of the scores, which a softmax magnifies. */
export const turboQuantK8V4 = turboQuant('turboquant-k8v4', { keys: 8, values: 4 });
