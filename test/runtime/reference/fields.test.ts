import fc from 'fast-check';
import { expect, test } from 'vitest';
import { readField, readSignedField, writeField } from '../../../runtime/reference/index.js';

test('the lowest bit of a byte comes first', () => {
  const bytes = Uint8Array.of(0b1010_0000, 0b0000_0001);
  expect(readField(bytes, { offset: 5, width: 4 })).toBe(0b1101);
  expect(readSignedField(bytes, { offset: 5, width: 4 })).toBe(-3);
});

test('32 bits are a little-endian word, with and without sign', () => {
  const bytes = Uint8Array.of(0xfe, 0xff, 0xff, 0xff);
  expect(readField(bytes, { offset: 0, width: 32 })).toBe(0xfffffffe);
  expect(readSignedField(bytes, { offset: 0, width: 32 })).toBe(-2);
});

test('bits outside of the buffer are refused', () => {
  expect(() => readField(new Uint8Array(1), { offset: 6, width: 3 })).toThrow('bit 8 is outside of 1 bytes');
  expect(() => writeField(new Uint8Array(1), { offset: -1, width: 1 }, 0)).toThrow('bit -1 is outside of 1 bytes');
});

test('what is written is read, and the bits around it stay', () => {
  const field = fc.record({ offset: fc.nat(30), width: fc.integer({ min: 1, max: 32 }) });
  fc.assert(
    fc.property(
      fc.uint8Array({ minLength: 8, maxLength: 8 }),
      field,
      fc.integer(),
      (bytes, { offset, width }, seed) => {
        const value = seed % 2 ** (width - 1);
        const written = bytes.slice();
        writeField(written, { offset, width }, value);
        for (let bit = 0; bit < 64; bit++) {
          const outside = bit < offset || bit >= offset + width;
          const one = { offset: bit, width: 1 };
          if (outside && readField(written, one) !== readField(bytes, one)) return false;
        }
        return readSignedField(written, { offset, width }) === value + 0;
      },
    ),
  );
});
