import type { ScalarCodec } from '../codec.js';
import { hadamard } from '../codecs/hadamard.js';
import { lloydMax } from '../codecs/lloydMax.js';
import { perToken } from '../codecs/quantize.js';
import { asymmetric, symmetric } from '../codecs/uniform.js';
import { defineScheme, type ScalarValues } from '../scheme.js';

const integer = (name: string, chain: ScalarValues, stream: ScalarCodec) =>
  defineScheme({ name, keys: chain, values: chain, sinks: 4, window: 64, stream });

const [int2Codec, int4Codec, int8Codec] = [asymmetric({ bits: 2 }), asymmetric({ bits: 4 }), symmetric({ bits: 8 })];

/** Whole numbers of 8 bits, symmetric about zero, with a scale for each token and KV head. */
export const int8 = integer('int8', [perToken(int8Codec)], int8Codec);
/** 4 bits between the least and the greatest channel of each token and KV head. */
export const int4 = integer('int4', [perToken(int4Codec)], lloydMax({ bits: 4 }));
export const int2 = integer('int2', [perToken(int2Codec)], lloydMax({ bits: 2 }));

/** 4 bits as in int4, after the Hadamard transform, which leaves no outliers (QuaRot, Ashkboos et al. 2024). */
export const int4Hadamard = integer('int4-hadamard', [hadamard(), perToken(int4Codec)], lloydMax({ bits: 4 }));
export const int2Hadamard = integer('int2-hadamard', [hadamard(), perToken(int2Codec)], lloydMax({ bits: 2 }));
