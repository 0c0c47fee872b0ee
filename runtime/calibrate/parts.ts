import { setFloat16 } from '@petamoriken/float16';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { nearestInteger, toHalf } from '../reference/quantize.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { placeFields } from '../reference/tiltPlaces.js';
import { headWordsOf, pairOrder } from '../reference/unpackTilt.js';

/** A fit as the encoder's kernels take it, channels in the order of pairs. */
export interface FitParts {
  /** f32 [KV heads][channels], rounded to f16: decoding divides by what the share has. */
  readonly weights: Float32Array;
  /** f32 [KV heads][channels][components] */
  readonly vectors: Float32Array;
  /** f32 [KV heads][components], what a code of the stored basis stands for. */
  readonly columnScales: Float32Array;
  /** Parts of the share that depend on the fit alone. */
  readonly share: readonly (readonly [name: 'keyWeights' | 'keyBasis' | 'keyFields', bytes: Uint8Array])[];
}

/** @param fit one that `checkFit` takes */
export function fitParts(g: TiltGeometry, fit: TiltFit): FitParts {
  const { kvHeads, headDim: d, headGroups } = g;
  const order = pairOrder(g);
  const weights = Float32Array.from(fit.weights, (_, at) => toHalf(fit.weights[at - (at % d) + order[at % d]!]!));
  const vectors = new Float32Array(kvHeads * d * d);
  const columnScales = new Float32Array(kvHeads * d);
  const codes = new Int8Array(kvHeads * d * d);
  for (const [head, { data }] of fit.bases.entries()) {
    for (let r = 0; r < d; r++) {
      const column = order.map((channel) => data[channel * d + r]!);
      const scale = column.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 127;
      columnScales[head * d + r] = scale;
      for (const [i, x] of column.entries()) {
        vectors[(head * d + i) * d + r] = x;
        codes[(head * d + r) * d + i] = scale === 0 ? 0 : nearestInteger(x / scale);
      }
    }
  }
  const fields = new Uint32Array(kvHeads * g.fieldWords);
  for (const [head, { first, nibbles }] of headWordsOf(g, fit.widths).entries()) {
    const { groups } = placeFields(fit.widths.slice(head * headGroups, (head + 1) * headGroups));
    const words = [...groups.map(({ bits, bit, slot }) => bits + 16 * bit + 65536 * slot), nibbles, first];
    fields.set(words, head * g.fieldWords);
  }
  const bytesOf = ({ buffer }: { readonly buffer: ArrayBufferLike }) => new Uint8Array(buffer as ArrayBuffer);
  return {
    weights,
    vectors,
    columnScales,
    share: [
      ['keyWeights', bytesOf(halfBitsOf(weights))],
      ['keyBasis', bytesOf(codes)],
      ['keyFields', bytesOf(fields)],
    ],
  };
}

/** Rounded to float16, the nearest or the even one. */
export function halfBitsOf(numbers: ArrayLike<number>): Uint16Array {
  const word = new DataView(new ArrayBuffer(2));
  return Uint16Array.from(numbers, (x) => {
    setFloat16(word, 0, x);
    return word.getUint16(0);
  });
}
