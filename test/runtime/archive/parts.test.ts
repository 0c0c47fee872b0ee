import { deflateRawSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { expand, fitBasis, orthonormal, project, sampleRows } from '../../../runtime/archive/basis.js';
import { choicesOf, entropy, groupSizes } from '../../../runtime/archive/choices.js';
import {
  bytePlanes,
  deflated,
  fromBytePlanes,
  inflated,
  joinSymbols,
  splitSymbols,
  symbolsPerByte,
} from '../../../runtime/archive/entropy.js';
import { codeGroup, decodeGroup, scaleTable, widths } from '../../../runtime/archive/quantize.js';
import { halfBitsOf, numbersOf } from '../../../runtime/archive/rows.js';
import { normalFrom, seededRandom } from '../../../runtime/reference/index.js';
import { messageOf } from './case.js';

describe('a group', () => {
  const number = fc.oneof(
    fc.integer({ min: -(2 ** 27), max: 2 ** 27 }).map((x) => x / 1024),
    fc.constantFrom(0, -0, 2 ** -24, 65504 * 32, -65504 * 32, 1e-15),
  );
  const group = fc
    .record({
      components: fc.integer({ min: 1, max: 9 }),
      tokens: fc.integer({ min: 1, max: 6 }),
      bits: fc.constantFrom(...widths),
    })
    .chain(({ components, tokens, bits }) =>
      fc.record({
        ...{ components: fc.constant(components), tokens: fc.constant(tokens), bits: fc.constant(bits) },
        data: fc.array(number, { minLength: components * tokens, maxLength: components * tokens }),
      }),
    );

  it('is read back with just the error that coding it stated, and never worse than nothing', () => {
    fc.assert(
      fc.property(group, ({ components, tokens, bits, data }) => {
        const coefficients = { rows: components, columns: tokens, data: Float64Array.from(data) };
        const { coded, error } = codeGroup(coefficients, { start: 0, components, bits });
        const read = { rows: components, columns: tokens, data: new Float64Array(components * tokens) };
        decodeGroup(coded, { start: 0, components, bits }, read);
        const squares = data.reduce((sum, x) => sum + x * x, 0);
        const lost = data.reduce((sum, x, i) => sum + (x - read.data[i]!) ** 2, 0);
        expect(Math.abs(lost - error)).toBeLessThanOrEqual(1e-9 * squares);
        expect(error).toBeLessThanOrEqual(squares);
        expect(Math.max(...coded.codes)).toBeLessThanOrEqual(2 ** bits - 2);
      }),
    );
  });

  // Without clipping every number lies within half a step of a level; the scale is less than a step of its own too large.
  it('loses at most what even levels around zero lose', () => {
    fc.assert(
      fc.property(group, ({ components, tokens, bits, data }) => {
        const coefficients = { rows: components, columns: tokens, data: Float64Array.from(data) };
        const { error } = codeGroup(coefficients, { start: 0, components, bits });
        let bound = 0;
        const most = data.reduce((a, x) => Math.max(a, Math.abs(x)), 0);
        for (let token = 0; token < tokens; token++) {
          const own = data.filter((_, i) => i % tokens === token);
          const largest = own.reduce((a, x) => Math.max(a, Math.abs(x)), 0);
          // Below 2^-30 of the group's largest there is no scale.
          const reach = Math.max(largest, most * 2 ** -30) * 2 ** (1 / 8);
          bound += own.length * (reach / (2 ** (bits - 1) - 1) / 2) ** 2;
        }
        expect(error).toBeLessThanOrEqual(bound * (1 + 1e-6));
      }),
    );
  });

  it('has scales an eighth of an octave apart, and one of zero', () => {
    const table = scaleTable(3);
    expect(table[0]).toBe(0);
    expect(table[255]).toBe(8);
    expect(table[247]).toBe(4);
    for (let code = 2; code <= 255; code++) expect(table[code]! / table[code - 1]!).toBeCloseTo(2 ** 0.125, 6);
  });

  it('of zeros is zeros', () => {
    const coefficients = { rows: 2, columns: 2, data: new Float64Array(4) };
    const { coded, error } = codeGroup(coefficients, { start: 0, components: 2, bits: 2 });
    expect([error, [...coded.scales], [...coded.codes]]).toEqual([0, [0, 0], [1, 1, 1, 1]]);
  });
});

describe('the choices of a part', () => {
  const random = seededRandom(3);
  const [components, rows] = [10, 3000];
  const data = new Float64Array(components * rows).map((_, i) => normalFrom(random) * 0.7 ** Math.floor(i / rows));
  const coefficients = { rows: components, columns: rows, data };
  // Entropy coding as for the tokens that there are, and a basis of 20 bits a component and token.
  const [weight, componentBits] = [3, 20 * rows];
  const { width, tail, choices } = choicesOf(coefficients, { weight, tokens: rows, componentBits });
  const squares = (numbers: Float64Array) => numbers.reduce((sum, x) => sum + x * x, 0);

  it('are groups of every size and width, at multiples of their sizes', () => {
    const sizes = groupSizes.map((size) => Math.ceil(components / size));
    expect(choices).toHaveLength(widths.length * sizes.reduce((sum, groups) => sum + groups, 0));
    const own = choices.filter(({ bits }) => bits === 4).map((choice) => [choice.start, choice.components]);
    expect(own.filter(([, size]) => size! > 2)).toEqual([
      [0, 4],
      [4, 4],
      [0, 8],
      [0, 10],
      [0, 10],
      [0, 10],
    ]);
    expect(width).toBe(components);
  });

  it('lose what is left of the squares, and without any group all', () => {
    for (let start = 0; start <= components; start++) {
      expect(tail[start]).toBeCloseTo((weight * squares(data.subarray(start * rows))) / rows, 10);
    }
    for (const place of choices) {
      const read = { rows: components, columns: rows, data: new Float64Array(components * rows) };
      decodeGroup(codeGroup(coefficients, place).coded, place, read);
      const lost = data.map((x, i) => {
        const component = Math.floor(i / rows);
        return component >= place.start && component < place.start + place.components ? x - read.data[i]! : 0;
      });
      expect(place.error).toBeCloseTo((weight * squares(lost)) / rows, 10);
    }
  });

  it('cost what they take in a file, within a twentieth', () => {
    for (const place of choices) {
      const { scales, codes } = codeGroup(coefficients, place).coded;
      const bytes = deflated(scales).length + deflated(joinSymbols(codes, place.bits)).length;
      const measured = (8 * bytes) / rows + 20 * place.components;
      expect(place.cost / measured, JSON.stringify(place)).toBeGreaterThan(0.95);
      expect(place.cost / measured, JSON.stringify(place)).toBeLessThan(1.05);
    }
  });
});

describe('a basis', () => {
  const random = seededRandom(5);
  const [rows, columns] = [200, 12];
  const data = new Float64Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    const [a, b] = [normalFrom(random), normalFrom(random)];
    for (let i = 0; i < columns; i++)
      data[row * columns + i] = 3 + a * Math.cos(i) + 0.2 * b * i + 0.01 * normalFrom(random);
  }
  const matrix = { rows, columns, data };
  const basis = fitBasis(matrix);
  const vectors = orthonormal(basis);
  const mean = numbersOf(basis.mean);

  it('is orthonormal after its directions were rounded', () => {
    for (let i = 0; i < columns; i++) {
      for (let j = 0; j < columns; j++) {
        let dot = 0;
        for (let k = 0; k < columns; k++) dot += vectors[i * columns + k]! * vectors[j * columns + k]!;
        expect(dot).toBeCloseTo(i === j ? 1 : 0, 12);
      }
    }
  });

  it('of fewer components is the beginning of the whole', () => {
    const first = orthonormal({ width: columns, rank: 5, codes: basis.codes.subarray(0, 5 * columns) });
    expect(first).toEqual(vectors.subarray(0, 5 * columns));
  });

  it('gives rows back, and with two components all but their noise', () => {
    const coefficients = project(matrix, mean, vectors);
    const whole = expand(coefficients, mean, vectors);
    for (const [i, x] of whole.data.entries()) expect(x).toBeCloseTo(data[i]!, 10);
    const two = { rows: 2, columns: rows, data: coefficients.data.slice(0, 2 * rows) };
    const nearly = expand(two, mean, vectors.subarray(0, 2 * columns));
    const lost = nearly.data.reduce((sum, x, i) => sum + (x - data[i]!) ** 2, 0) / (rows * columns);
    // The noise's variance is 1e-4; rounding the directions to 8 bits adds less than as much.
    expect(lost).toBeLessThan(2e-4);
    expect(lost).toBeGreaterThan(0.5e-4);
  });

  it('is refused when a direction comes twice', () => {
    const codes = Int8Array.of(127, 0, 127, 0);
    expect(messageOf(() => orthonormal({ width: 2, rank: 2, codes }))).toMatchInlineSnapshot(
      `"archive, basis, component 1: expected a direction that those before it do not have, got 0.0e+0 of it left. Pack the cache again."`,
    );
    expect(messageOf(() => orthonormal({ width: 2, rank: 1, codes: new Int8Array(2) }))).toMatchInlineSnapshot(
      `"archive, basis, component 0: expected a direction that those before it do not have, got 0.0e+0 of it left. Pack the cache again."`,
    );
  });

  it('is fitted to every so many rows of very many', () => {
    expect(sampleRows(matrix, 70)).toMatchObject({ rows: 67, columns });
    expect(sampleRows(matrix, 70).data.subarray(columns, 2 * columns)).toEqual(data.subarray(3 * columns, 4 * columns));
    expect(sampleRows(matrix, 200)).toBe(matrix);
  });
});

describe('entropy coding', () => {
  it('gives back symbols of every width', () => {
    const symbols = fc
      .constantFrom(...widths)
      .chain((bits) => fc.tuple(fc.constant(bits), fc.array(fc.nat(2 ** bits - 2), { maxLength: 300 })));
    fc.assert(
      fc.property(symbols, ([bits, list]) => {
        const bytes = joinSymbols(Uint8Array.from(list), bits);
        expect(bytes.length).toBe(Math.ceil(list.length / symbolsPerByte(bits)));
        const read = inflated(deflated(bytes), bytes.length, 'codes');
        expect([...splitSymbols(read, bits, list.length)]).toEqual(list);
      }),
    );
  });

  it('gives back all f16 bits', () => {
    const bits = new Uint16Array(65536).map((_, i) => i);
    expect(fromBytePlanes(bytePlanes(bits))).toEqual(bits);
    expect(halfBitsOf(numbersOf(Uint16Array.of(0, 0x8000, 0x3c00, 1, 0x7bff)))).toEqual(
      Uint16Array.of(0, 0x8000, 0x3c00, 1, 0x7bff),
    );
  });

  it('comes near to the entropy', () => {
    const random = seededRandom(9);
    const symbols = new Uint8Array(20_000).map(() =>
      Math.min(14, Math.max(0, Math.round(7 + 1.5 * normalFrom(random)))),
    );
    const bits = (deflated(joinSymbols(symbols, 4)).length * 8) / symbols.length;
    expect(bits).toBeGreaterThan(entropy(symbols));
    expect(bits).toBeLessThan(entropy(symbols) * 1.03);
    expect(entropy(Uint8Array.of(0, 1, 2, 3))).toBe(2);
    expect(entropy(Uint8Array.of(5, 5, 5))).toBe(0);
  });

  it('refuses what is cut short, longer, or too short for what it is to hold', () => {
    const stream = deflateRawSync(new Uint8Array(100).map((_, i) => (i * 7919) % 251));
    const fault = (bytes: Uint8Array, length: number) => messageOf(() => inflated(bytes, length, 'section exact'));
    expect(fault(stream.subarray(0, 50), 100)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 100 bytes, got unexpected end of file. Pack the cache again."`,
    );
    expect(fault(stream, 99)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 99 bytes, got a longer one. Pack the cache again."`,
    );
    expect(fault(stream, 101)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 101 bytes, got one of 100. Pack the cache again."`,
    );
    expect(fault(stream, 2 ** 31)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 2147483648 bytes, got 105 bytes, too few for it. Pack the cache again."`,
    );
    expect(fault(Uint8Array.of(0xff, 0xff), 10)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 10 bytes, got invalid block type. Pack the cache again."`,
    );
    expect(fault(new Uint8Array(0), 1)).toMatchInlineSnapshot(
      `"archive, section exact: expected a stream of 1 bytes, got 0 bytes, too few for it. Pack the cache again."`,
    );
  });
});
