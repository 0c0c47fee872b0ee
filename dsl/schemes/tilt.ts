import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { perToken } from '../codecs/quantize.js';
import { gain, tileRotation, transformCode } from '../codecs/transformCode.js';
import { asymmetric } from '../codecs/uniform.js';
import { uniformNormal } from '../codecs/uniformNormal.js';
import { unrope } from '../codecs/unrope.js';
import { defineScheme, type TiltValues } from '../scheme.js';

/** The stream has 8 bits, as Shard's: nothing in it is fitted, and nothing can drift. */
const tilt = (name: string, bits: number, values: TiltValues) => {
  const keys = [unrope(), tileRotation({ tile: 64 }), transformCode({ bits })] as const;
  return defineScheme({ name, keys, values, sinks: 4, window: 64, stream: lloydMax({ bits: 8 }) });
};

/** Tile-rotated transform coding of keys, 1.5 bits, and values of 2 bits: attention multiplies codes as they are. */
export const tiltFast = tilt('tilt-fast', 1.5, [hadamard(), perToken(uniformNormal({ bits: 2 })), gain()]);
/** The same with 2 bits for keys and 3 for values. */
export const tiltSafe = tilt('tilt-safe', 2, [hadamard(), perToken(asymmetric({ bits: 3 }))]);
