import { KvforgeError } from '../dsl/errors.js';

/** What a tensor of f16 bits is, for the position in an error. */
export interface HalfTensorShape {
  readonly name: string;
  /** Names and sizes of the dimensions, outermost first. */
  readonly dimensions: readonly { readonly name: string; readonly size: number }[];
}

/**
 * Checks length and finiteness of f16 bits, so that a NaN never reaches a kernel and spreads.
 *
 * @throws KvforgeError `invalid-input` with the index in every dimension; `wrong-use` for anything but a Uint16Array
 * @example
 * checkHalf(new Uint16Array([0x3c00]), { name: 'keys', dimensions: [{ name: 'token', size: 1 }] });
 */
export function checkHalf(bits: Uint16Array, shape: HalfTensorShape): void {
  const expected = shape.dimensions.reduce((product, { size }) => product * size, 1);
  const form = shape.dimensions.map(({ name, size }) => `${size} ${name}s`).join(' x ');
  if (!(bits instanceof Uint16Array) || bits.length !== expected) {
    const isHalves = bits instanceof Uint16Array;
    throw new KvforgeError(isHalves ? 'invalid-input' : 'wrong-use', {
      at: shape.name,
      expected: `${expected} f16 numbers (${form}) as a Uint16Array`,
      received: isHalves ? `${(bits as Uint16Array).length}` : typeof bits,
      hint: 'Pass the bits of the f16 tensor, innermost dimension last.',
    });
  }
  for (let i = 0; i < bits.length; i++) {
    if ((bits[i]! & 0x7c00) === 0x7c00) {
      let rest = i;
      const position = [...shape.dimensions]
        .reverse()
        .map(({ name, size }) => {
          const index = rest % size;
          rest = Math.floor(rest / size);
          return `${name} ${index}`;
        })
        .reverse()
        .join(', ');
      throw new KvforgeError('invalid-input', {
        at: `${shape.name}, ${position}`,
        expected: 'a finite f16 number',
        received: (bits[i]! & 0x3ff) !== 0 ? 'NaN' : bits[i]! & 0x8000 ? '-Infinity' : 'Infinity',
        hint: 'Find where the model overflows; nothing was written to the cache.',
      });
    }
  }
}
