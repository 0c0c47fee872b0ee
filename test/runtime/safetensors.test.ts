import { readFile } from 'node:fs/promises';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KvforgeError } from '../../dsl/errors.js';
import { packSafetensors, parseSafetensors, type Tensor, tensorValues } from '../../runtime/safetensors.js';

const fixture = await readFile(new URL('../fixtures/smollm2-135m-kv.safetensors', import.meta.url));

function file(header: string | object, dataBytes = 0): Uint8Array {
  const text = new TextEncoder().encode(typeof header === 'string' ? header : JSON.stringify(header));
  const bytes = new Uint8Array(8 + text.length + dataBytes);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  return bytes;
}

const entry = (dtype: string, shape: unknown, from: number, to: number) => ({ dtype, shape, data_offsets: [from, to] });

describe('the fixture', () => {
  const { tensors, metadata } = parseSafetensors(fixture);

  test('has keys, values and queries of three layers', () => {
    expect([...tensors].map(([name, { dtype, shape }]) => `${name} ${dtype} [${shape}]`).sort()).toEqual(
      [2, 14, 27]
        .flatMap((layer) => [
          `layers.${layer}.k F16 [3,2048,64]`,
          `layers.${layer}.q F16 [9,16,64]`,
          `layers.${layer}.v F16 [3,2048,64]`,
        ])
        .sort(),
    );
    expect(JSON.parse(metadata.get('config')!)).toMatchObject({ model_type: 'llama', rope_theta: 100000 });
  });

  test('holds finite numbers', () => {
    const values = tensorValues(tensors.get('layers.14.k')!);
    expect(values.length).toBe(3 * 2048 * 64);
    expect(values.every(Number.isFinite)).toBe(true);
  });
});

test('each dtype is read exactly, at any alignment', () => {
  const header = {
    a: entry('F16', [3], 0, 6),
    b: entry('BF16', [1, 2], 6, 10),
    c: entry('F32', [], 10, 14),
    d: entry('U32', [1], 14, 18),
    e: entry('I8', [1, 1], 18, 19),
    f: entry('U8', [1], 19, 20),
  };
  const bytes = file(header, 20);
  const view = new DataView(bytes.buffer, bytes.length - 20);
  [0x3c00, 0x0001, 0xfc00, 0x4049, 0x8000].forEach((bits, index) => {
    view.setUint16(index * 2, bits, true);
  });
  view.setFloat32(10, 0.1, true);
  view.setUint32(14, 0xfffffffe, true);
  view.setInt8(18, -128);
  view.setUint8(19, 255);
  for (const shift of [0, 1]) {
    const moved = new Uint8Array(bytes.length + shift);
    moved.set(bytes, shift);
    const { tensors } = parseSafetensors(moved.subarray(shift));
    expect([...tensorValues(tensors.get('a')!)]).toEqual([1, 2 ** -24, -Infinity]);
    expect([...tensorValues(tensors.get('b')!)]).toEqual([3.140625, -0]);
    expect([...tensorValues(tensors.get('c')!)]).toEqual([Math.fround(0.1)]);
    expect(['d', 'e', 'f'].map((name) => tensorValues(tensors.get(name)!)[0])).toEqual([4294967294, -128, 255]);
  }
});

test('an empty tensor, no tensor and names that objects inherit are all fine', () => {
  expect(parseSafetensors(file('{} ')).tensors.size).toBe(0);
  const odd = `{"__proto__":${JSON.stringify(entry('F16', [0, 7], 0, 0))},"toString":${JSON.stringify(entry('F16', [1], 0, 2))}}`;
  expect([...parseSafetensors(file(odd, 2)).tensors.keys()]).toEqual(['__proto__', 'toString']);
});

test('what is packed is parsed again, names and texts of any kind included', () => {
  const size = { F16: 2, BF16: 2, F32: 4, U8: 1, I8: 1, U32: 4 } as const;
  const name = fc.string({ unit: 'grapheme' }).filter((text) => text !== '__metadata__' && !/^\d+$/.test(text));
  const tensor = fc
    .record({
      dtype: fc.constantFrom(...(Object.keys(size) as (keyof typeof size)[])),
      shape: fc.array(fc.nat(4), { maxLength: 3 }),
      seed: fc.nat(255),
    })
    .map(({ dtype, shape, seed }): Tensor => {
      const bytes = new Uint8Array(shape.reduce((product, extent) => product * extent, size[dtype]));
      return { dtype, shape, bytes: bytes.map((_, i) => seed + i) };
    });
  const texts = fc.dictionary(
    fc.string().filter((key) => key !== '__proto__'),
    fc.string({ unit: 'grapheme' }),
  );
  fc.assert(
    fc.property(fc.array(fc.tuple(name, tensor)), texts, (list, metadata) => {
      const tensors = new Map(list);
      const packed = packSafetensors(tensors, metadata);
      const parsed = parseSafetensors(packed);
      expect(new Map([...parsed.tensors].sort())).toEqual(new Map([...tensors].sort()));
      expect(Object.fromEntries(parsed.metadata)).toEqual({ ...metadata });
      expect(new DataView(packed.buffer).getBigUint64(0, true) % 8n).toBe(0n);
    }),
  );
});

const rewrite = 'Write the file again; a copy that was cut short reads like this.';
const f16 = (from: number, to: number) => entry('F16', [(to - from) / 2], from, to);
const lying = file('{}');
lying[7] = 0xff;
test.each([
  ['an empty file', new Uint8Array(), 'file: expected at least 10 bytes, got 0'],
  ['a header length that lies', lying, 'header length: expected at most 2 bytes, got 18374686479671623682'],
  [
    'a truncated file',
    file({ a: f16(0, 8) }, 6),
    'tensor "a": expected data within the 6 bytes of the file, got an end at 8',
  ],
  ['bytes after the last tensor', file({ a: f16(0, 2) }, 4), 'file: expected 2 bytes of tensor data, got 4'],
  ['a list for a header', file('[]'), 'header: expected a JSON object, got a list'],
  [
    'an overlap',
    file({ a: f16(0, 4), b: f16(2, 6) }, 6),
    'tensor "b": expected data from byte 4, where the tensor before it ends, got 2',
  ],
  [
    'a gap',
    file({ a: f16(0, 2), b: f16(4, 6) }, 6),
    'tensor "b": expected data from byte 2, where the tensor before it ends, got 4',
  ],
  [
    'offsets the wrong way round',
    file({ a: f16(0, -2) }, 2),
    'tensor "a".shape.0: expected a size of 0 or more, got -1',
  ],
  [
    'a shape that does not fit',
    file({ a: entry('F32', [2], 0, 4) }, 4),
    'tensor "a": expected 8 bytes for F32 [2], got 4',
  ],
  [
    'a shape that overflows',
    file({ a: entry('F16', [2 ** 40, 2 ** 40], 0, 2) }, 2),
    'tensor "a": expected 2.4178516392292583e+24 bytes for F16 [1099511627776, 1099511627776], got 2',
  ],
  [
    'a dtype it cannot read',
    file({ a: entry('I64', [1], 0, 8) }, 8),
    'tensor "a".dtype: expected F16, BF16, F32, U8, I8 or U32, got "I64"',
  ],
  [
    'an offset that is no number',
    file({ a: { ...f16(0, 2), data_offsets: [0, 'x'] } }, 2),
    'tensor "a".data_offsets.1: expected a size of 0 or more, got "x"',
  ],
  ['an entry that is no object', file({ a: null }), 'tensor "a": expected dtype, shape and data_offsets, got null'],
  ['metadata that is no text', file({ __metadata__: { a: 1 } }), 'metadata.a: expected a string, got 1'],
  ['a name given twice', file('{"a":{},"\\u0061":{}}'), 'header: expected every name once, got "\\u0061" twice'],
])('%s is refused', (_name, bytes, message) => {
  expect(() => parseSafetensors(bytes)).toThrow(
    expect.objectContaining({ code: 'invalid-input', message: `safetensors ${message}. ${rewrite}` }),
  );
});

test('a header that is no JSON is refused with what the parser said', () => {
  expect(() => parseSafetensors(file('{"a":'))).toThrow(
    /^safetensors header: expected JSON in UTF-8, got .*JSON.*Write/,
  );
  expect(() => parseSafetensors(file('{"'.padEnd(1e5, '{"a":')))).toThrow(
    /^safetensors header: expected JSON in UTF-8/,
  );
});

test('whatever the bytes, the answer is tensors or a KvforgeError', () => {
  const valid = file({ a: f16(0, 4), b: f16(4, 8), __metadata__: { x: 'y' } }, 8);
  const damaged = fc.tuple(fc.nat(valid.length - 1), fc.nat(255), fc.nat(valid.length)).map(([at, byte, length]) => {
    const copy = valid.slice(0, length);
    if (at < length) copy[at] = byte;
    return copy;
  });
  fc.assert(
    fc.property(fc.oneof(damaged, fc.uint8Array()), (bytes) => {
      try {
        for (const tensor of parseSafetensors(bytes).tensors.values()) tensorValues(tensor);
      } catch (error) {
        return error instanceof KvforgeError && error.code === 'invalid-input';
      }
      return true;
    }),
    { numRuns: 2000 },
  );
});
