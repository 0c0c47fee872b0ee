import { createHash } from 'node:crypto';
import { deflateRawSync, inflateRawSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { modelFrom, presetModel } from '../../../dsl/model.js';
import { inspectArchive } from '../../../runtime/archive/inspect.js';
import { packArchive } from '../../../runtime/archive/pack.js';
import { unpackArchive } from '../../../runtime/archive/unpack.js';
import { packSafetensors, parseSafetensors, type Tensor } from '../../../runtime/safetensors.js';
import { config, correlated, messageOf, narrow } from './case.js';

const input = correlated(200, [1, 3]);
const options = { bytesPerToken: 50, sinks: 2, window: 6 };
const file = packArchive(input, options);
const { tensors, metadata } = parseSafetensors(file);

/** As an error that names no digest and no number that depends on the codes. */
const fault = (bytes: Uint8Array) => messageOf(() => unpackArchive(bytes)).replace(/[0-9a-f]{64}/g, 'DIGEST');
const sha256 = (data: Uint8Array | string) => createHash('sha256').update(data).digest('hex');

/** The file with another header, whose digest is right: what only its contents can tell. */
function withHeader(change: (header: Record<string, unknown>) => void, sections = tensors): Uint8Array {
  const header = JSON.parse(metadata.get('header')!) as Record<string, unknown>;
  header.sections = Object.fromEntries([...sections].map(([name, { bytes }]) => [name, sha256(bytes)]));
  change(header);
  const text = JSON.stringify(header);
  return packSafetensors(sections, { ...Object.fromEntries(metadata), sha256: sha256(text), header: text });
}

const withMetadata = (change: Record<string, string>) =>
  packSafetensors(tensors, { ...Object.fromEntries(metadata), ...change });

const section = (bytes: Uint8Array): Tensor => ({ dtype: 'U8', shape: [bytes.length], bytes });

describe('a damaged archive', () => {
  it('is refused when it was cut off anywhere', () => {
    const start = 8 + Number(new DataView(file.buffer).getBigUint64(0, true));
    const ends = [...tensors.values()].map(({ bytes }) => bytes.byteOffset + bytes.length);
    const cuts = [0, 7, 9, start - 1, start, ...ends.flatMap((end) => [end - 1, end])].filter(
      (cut) => cut < file.length,
    );
    for (const cut of cuts) {
      expect(() => unpackArchive(file.subarray(0, cut))).toThrow(/^safetensors /);
      expect(() => inspectArchive(file.subarray(0, cut))).toThrow(/^safetensors /);
    }
    expect(cuts.length).toBeGreaterThan(2 * tensors.size);
    expect(fault(file.subarray(0, 9))).toMatchInlineSnapshot(
      `"safetensors file: expected at least 10 bytes, got 9. Write the file again; a copy that was cut short reads like this."`,
    );
    expect(
      messageOf(() => unpackArchive(file.subarray(0, file.length - 1))).replace(/\d+/g, 'N'),
    ).toMatchInlineSnapshot(
      `"safetensors tensor "parts.N.codes": expected data within the N bytes of the file, got an end at N. Write the file again; a copy that was cut short reads like this."`,
    );
  });

  it('is refused when any byte is another', () => {
    for (let place = 0; place < file.length; place += place < 5000 ? 13 : 101) {
      for (const bit of [0x01, 0x80]) {
        const changed = Uint8Array.from(file);
        changed[place]! ^= bit;
        expect(() => unpackArchive(changed), `byte ${place}`).toThrow(/^(archive|safetensors) ?/);
      }
    }
  });

  it('names the section whose bytes are others', () => {
    for (const [name, { bytes }] of tensors) {
      const changed = Uint8Array.from(file);
      changed[bytes.byteOffset]! ^= 1;
      expect(fault(changed)).toBe(
        `archive, sha256 of section ${name}: expected DIGEST, got DIGEST. The file was damaged or changed; pack the cache again.`,
      );
    }
    expect(fault(withMetadata({ header: metadata.get('header')!.replace('200', '201') }))).toMatchInlineSnapshot(
      `"archive, sha256 of header: expected DIGEST, got DIGEST. The file was damaged or changed; pack the cache again."`,
    );
  });

  it('is told from other files, and from those of other versions', () => {
    expect(fault(packSafetensors(new Map(), {}))).toMatchInlineSnapshot(
      `"archive, format: expected "kvforge-archive", got a file without a format. Read a file that kvforge archive pack has written."`,
    );
    expect(fault(withMetadata({ format: 'kvforge-cache' }))).toMatchInlineSnapshot(
      `"archive, format: expected "kvforge-archive", got "kvforge-cache". Load it with loadCache."`,
    );
    expect(fault(withMetadata({ version: '2' }))).toMatchInlineSnapshot(
      `"archive, version: expected 1, got 2. Read it with the version of kvforge that wrote it."`,
    );
    expect(fault(new Uint8Array(100))).toMatchInlineSnapshot(
      `"safetensors header: expected JSON in UTF-8, got Unexpected end of JSON input. Write the file again; a copy that was cut short reads like this."`,
    );
  });

  it('is refused with sections that are missing or too many', () => {
    const fewer = new Map([...tensors].filter(([name]) => name !== 'parts.1.codes'));
    expect(fault(withHeader(() => {}, fewer))).toMatchInlineSnapshot(
      `"archive, section parts.1.codes: expected its bytes, got nothing. The file was damaged or changed; pack the cache again."`,
    );
    expect(
      fault(withHeader(() => {}, new Map([...tensors, ['extra', section(new Uint8Array(1))]]))),
    ).toMatchInlineSnapshot(
      `"archive, section "extra": expected none of this name, got one. The file was damaged or changed; pack the cache again."`,
    );
    const other: Tensor = { dtype: 'I8', shape: tensors.get('exact')!.shape, bytes: tensors.get('exact')!.bytes };
    expect(fault(withHeader(() => {}, new Map([...tensors, ['exact', other]])))).toMatchInlineSnapshot(
      `"archive, section exact: expected its bytes, got I8. The file was damaged or changed; pack the cache again."`,
    );
  });
});

describe('a header that lies', () => {
  type Part = { layers: number[]; operand: string; groups: number[][] };
  const parts = (header: Record<string, unknown>) => header.parts as Part[];

  it('of lengths gets no memory for them', () => {
    const before = process.memoryUsage().arrayBuffers;
    const faults = [
      withHeader((header) => Object.assign(header, { tokens: 2 ** 24 })),
      withHeader((header) => Object.assign(header, { tokens: 2 ** 23 })),
      withHeader((header) => Object.assign(header, { tokens: 2 ** 22 })),
      withHeader((header) => Object.assign(header, { tokens: 2 ** 40 })),
      withHeader((header) => Object.assign(header, { tokens: -1 })),
      withHeader((header) => Object.assign(header, { tokens: 201 })),
      withHeader((header) => Object.assign(header, { sinks: 100 })),
      withHeader((header) => Object.assign(header.model as object, { kvHeads: 2 ** 16, headDim: 2 ** 16 })),
    ].map(fault);
    expect(faults).toMatchInlineSnapshot(`
      [
        "archive: expected keys and values of less than 2147483648 bytes, got 4294967296. Pack fewer layers into an archive.",
        "archive: expected keys and values of less than 2147483648 bytes, got 2147483648. Pack fewer layers into an archive.",
        "archive, section parts.0.codes, group 0, scales: expected a stream of 4194296 bytes, got 119 bytes, too few for it. Pack the cache again.",
        "archive, header.tokens: expected what kvforge writes, got Too big: expected number to be <=16777216. The file was damaged or changed; pack the cache again.",
        "archive, header.tokens: expected what kvforge writes, got Too small: expected number to be >=0. The file was damaged or changed; pack the cache again.",
        "archive, section parts.0.codes, group 0, scales: expected a stream of 193 bytes, got one of 192. Pack the cache again.",
        "archive, section exact: expected a stream of 27136 bytes, got one of 2048. Pack the cache again.",
        "archive: expected keys and values of less than 2147483648 bytes, got 6871947673600. Pack fewer layers into an archive.",
      ]
    `);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(2 ** 28);
  });

  it('and is no JSON is refused', () => {
    const withText = (header: string) => withMetadata({ header, sha256: sha256(header) });
    expect([fault(withText('x')), fault(withText(''))]).toMatchInlineSnapshot(`
      [
        "archive, header: expected JSON, got Unexpected token 'x', "x" is not valid JSON. The file was damaged or changed; pack the cache again.",
        "archive, header: expected JSON, got Unexpected end of JSON input. The file was damaged or changed; pack the cache again.",
      ]
    `);
  });

  it('of groups is refused', () => {
    const faults = [
      withHeader((header) => parts(header)[0]!.groups.push([64, 8, 0, 100, 100])),
      withHeader((header) => parts(header)[0]!.groups.push([1, 8, 0, 100, 100])),
      withHeader((header) => parts(header)[0]!.groups[0]!.splice(0, 1, 0)),
      withHeader((header) => parts(header)[0]!.groups[0]!.splice(1, 1, 9)),
      withHeader((header) => parts(header)[0]!.groups[0]!.splice(2, 1, 1000)),
      withHeader((header) => {
        const [group] = parts(header)[0]!.groups as [number[]];
        group[3]! += 1;
        group[4]! -= 1;
      }),
    ].map((bytes) => fault(bytes).replace(/\d{3,}/g, 'N'));
    expect(faults).toMatchInlineSnapshot(`
      [
        "archive, header.parts.0.groups: expected at most 32 components, got 90. The file was damaged or changed; pack the cache again.",
        "archive, section parts.0.basis: expected a stream of N bytes, got one of N. Pack the cache again.",
        "archive, header.parts.0.groups.0.0: expected what kvforge writes, got Too small: expected number to be >=1. The file was damaged or changed; pack the cache again.",
        "archive, header.parts.0.groups.0.1: expected what kvforge writes, got Invalid option: expected one of 2|3|4|5|6|7|8. The file was damaged or changed; pack the cache again.",
        "archive, header.parts.0.groups.0.2: expected what kvforge writes, got Too big: expected number to be <=64. The file was damaged or changed; pack the cache again.",
        "archive, section parts.0.codes, group 0: expected a stream of N bytes, got invalid stored block lengths. Pack the cache again.",
      ]
    `);
  });

  it('of layers and parts is refused', () => {
    const faults = [
      withHeader((header) => Object.assign(header, { layers: [] })),
      withHeader((header) =>
        Object.assign(header, {
          layers: [
            { layer: 3, rope: 0 },
            { layer: 1, rope: 0 },
          ],
        }),
      ),
      withHeader((header) =>
        Object.assign(header, {
          layers: [
            { layer: 1, rope: 0 },
            { layer: 4, rope: 0 },
          ],
        }),
      ),
      withHeader((header) =>
        Object.assign(header, {
          layers: [
            { layer: 1, rope: 1 },
            { layer: 3, rope: 0 },
          ],
        }),
      ),
      withHeader((header) => parts(header).pop()),
      withHeader((header) => Object.assign(parts(header)[3]!, { operand: 'keys' })),
      withHeader((header) => Object.assign(parts(header)[3]!, { layers: [7] })),
      withHeader((header) => Object.assign(header, { ropes: [{ pairing: 'half', frequencies: Array(9).fill(1) }] })),
      withHeader((header) => Object.assign(header, { ropes: [{ pairing: 'quarter', frequencies: [1] }] })),
    ].map(fault);
    expect(faults).toMatchInlineSnapshot(`
      [
        "archive, header.layers: expected what kvforge writes, got Too small: expected array to have >=1 items. The file was damaged or changed; pack the cache again.",
        "archive, header.layers.1: expected ascending layers below 4, got 1. The file was damaged or changed; pack the cache again.",
        "archive, header.layers.1: expected ascending layers below 4, got 4. The file was damaged or changed; pack the cache again.",
        "archive, header.layers.0.rope: expected one of the list, got 1. The file was damaged or changed; pack the cache again.",
        "archive, header.parts: expected keys and values of every layer once, got 3 of them. The file was damaged or changed; pack the cache again.",
        "archive, header.parts: expected keys and values of every layer once, got 4 of them. The file was damaged or changed; pack the cache again.",
        "archive, header.parts: expected keys and values of every layer once, got 4 of them. The file was damaged or changed; pack the cache again.",
        "archive, header.ropes.0: expected at most 8 frequencies, got 9. The file was damaged or changed; pack the cache again.",
        "archive, header.ropes.0.pairing: expected what kvforge writes, got Invalid option: expected one of "half"|"interleaved". The file was damaged or changed; pack the cache again.",
      ]
    `);
  });

  it('beside codes that there are not is refused', () => {
    const basis = tensors.get('parts.0.basis')!.bytes;
    const replaced = (name: string, bytes: Uint8Array) =>
      withHeader(() => {}, new Map([...tensors, [name, section(bytes)]]));
    const infinite = Uint8Array.from(basis);
    infinite.set([0, 0x7c], 0);
    const faults = [
      replaced('parts.0.basis', new Uint8Array(3)),
      replaced('parts.0.basis', infinite),
      replaced('parts.0.basis', basis.subarray(0, basis.length - 20)),
      replaced('parts.0.codes', tensors.get('parts.0.codes')!.bytes.subarray(1)),
      replaced('exact', tensors.get('exact')!.bytes.subarray(0, 30)),
    ].map((bytes) => fault(bytes).replace(/\d{3,}/g, 'N'));
    expect(faults).toMatchInlineSnapshot(`
      [
        "archive, section parts.0.basis: expected at least 64 bytes of means, got 3. Pack the cache again.",
        "archive, section parts.0.basis: expected finite means, got one that is not. Pack the cache again.",
        "archive, section parts.0.basis: expected a stream of N bytes, got unexpected end of file. Pack the cache again.",
        "archive, section parts.0.codes: expected N bytes, got N. Pack the cache again.",
        "archive, section exact: expected a stream of N bytes, got unexpected end of file. Pack the cache again.",
      ]
    `);
  });
});

describe('what reaches other programs', () => {
  it('holds no number and no name that they would trip over', () => {
    const planes = inflateRawSync(tensors.get('exact')!.bytes);
    // High bytes follow the low ones.
    planes[planes.length / 2] = 0x7e;
    const faults = [
      withHeader((header) => Object.assign(header.model as object, { name: '\u001b[31mred' })),
      withHeader((header) => Object.assign(header.model as object, { name: 'n'.repeat(201) })),
      withHeader((header) => Object.assign(header, { ropes: [{ pairing: 'half', frequencies: [1e308] }] })),
      withHeader(() => {}, new Map([...tensors, ['exact', section(deflateRawSync(planes))]])),
    ].map(fault);
    expect(faults).toMatchInlineSnapshot(`
      [
        "archive, header.model.name: expected what kvforge writes, got a name with control characters. The file was damaged or changed; pack the cache again.",
        "archive, header.model.name: expected what kvforge writes, got Too big: expected string to have <=200 characters. The file was damaged or changed; pack the cache again.",
        "archive, header.ropes.0.frequencies.0: expected what kvforge writes, got Too big: expected number to be <=18446744073709552000. The file was damaged or changed; pack the cache again.",
        "archive, section exact: expected finite numbers, got one that is not. Pack the cache again.",
      ]
    `);
  });

  it('is a name as it was, but for its length and control characters', () => {
    const nameOf = (name: string) => {
      const packed = packArchive({ ...input, model: { ...narrow, name } }, options);
      return unpackArchive(packed).model.name;
    };
    expect(nameOf('org/model \u00e9')).toBe('org/model \u00e9');
    expect(nameOf('a\u001b[31m\nb')).toBe('a [31m b');
    expect(nameOf('n'.repeat(300))).toBe('n'.repeat(200));
  });
});

describe('another model', () => {
  it('is refused with what differs', () => {
    const other = (change: object) =>
      messageOf(() => unpackArchive(file, { model: { ...narrow, name: 'other', ...change } }));
    const rope = { ...narrow.rope, pairing: 'interleaved' as const };
    expect(other({})).toBe('none');
    expect([
      other({ layers: 5 }),
      other({ headDim: 32 }),
      other({ kinds: [{ rope }] }),
      other({ kinds: modelFrom({ ...config, rope_theta: 500000 }).kinds }),
      messageOf(() => unpackArchive(file, { model: presetModel('smollm2-135m') })),
    ]).toMatchInlineSnapshot(`
      [
        "archive, model, layers: expected 5 (of other), got 4. It holds a cache of narrow: give that model.",
        "archive, model, headDim: expected 32 (of other), got 16. It holds a cache of narrow: give that model.",
        "archive, model, RoPE of layer 1: expected interleaved (of other), got half. It holds a cache of narrow: give that model.",
        "archive, model, RoPE of layer 1, frequency 1: expected 0.19392274474868576 (of other), got 0.31622776601683794. It holds a cache of narrow: give that model.",
        "archive, model, layers: expected 30 (of smollm2-135m), got 4. It holds a cache of narrow: give that model.",
      ]
    `);
  });
});

describe('what cannot be packed', () => {
  const layer = input.layers[0]!;
  const pack = (change: object, given: object = {}) =>
    messageOf(() => packArchive({ ...input, ...change }, { ...options, ...given }));
  const withBits = (bits: number) => {
    const keys = layer.keys.slice();
    keys[(1 * 200 + 7) * 16 + 5] = bits;
    return { layers: [{ ...layer, keys }] };
  };

  it('is a number that is none, with its place', () => {
    expect(pack(withBits(0x7e00))).toMatchInlineSnapshot(
      `"keys, layer 1, KV head 1, token 7, channel 5: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache."`,
    );
    expect(pack(withBits(0xfc00))).toMatchInlineSnapshot(
      `"keys, layer 1, KV head 1, token 7, channel 5: expected a finite f16 number, got -Infinity. Find where the model overflows; nothing was written to the cache."`,
    );
    const values = layer.values.slice();
    values[0] = 0x7c00;
    expect(pack({ layers: [{ ...layer, values }] })).toMatchInlineSnapshot(
      `"values, layer 1, KV head 0, token 0, channel 0: expected a finite f16 number, got Infinity. Find where the model overflows; nothing was written to the cache."`,
    );
  });

  it('has another length, or layers out of order', () => {
    expect(pack({ tokens: 199 })).toMatchInlineSnapshot(
      `"keys, layer 1: expected 6368 f16 numbers (2 KV heads x 199 tokens x 16 channels) as a Uint16Array, got 6400. Pass the bits of the f16 tensor, innermost dimension last."`,
    );
    expect(pack({ tokens: -1 })).toMatchInlineSnapshot(
      `"tokens: expected a whole number from 0 to 16777216, got -1. Give the tokens of one sequence."`,
    );
    expect(pack({ layers: [] })).toMatchInlineSnapshot(
      `"layers: expected at least one layer, got none. Give what is to be packed."`,
    );
    expect(pack({ layers: [layer, layer] })).toMatchInlineSnapshot(
      `"layers[1].layer: expected a layer after 1, got 1. Give every layer once, in order."`,
    );
    expect(pack({ layers: [{ ...layer, layer: 4 }] })).toMatchInlineSnapshot(
      `"layer: expected a whole number from 0 to 3, got 4. narrow has 4 layers."`,
    );
    const latent = { ...narrow, latent: { latentDim: 28, rotaryDim: 4 } };
    expect(pack({ model: latent })).toMatchInlineSnapshot(
      `"model: expected a model with keys and values, got narrow, whose tokens are latents. Keep its caches with saveCache."`,
    );
  });

  it('was left out by a caller in plain JavaScript', () => {
    const none = undefined as never;
    expect([
      messageOf(() => packArchive(none, options)),
      messageOf(() => packArchive(input, none)),
      pack({ model: undefined }),
      pack({ layers: undefined }),
      messageOf(() => unpackArchive(none)),
      messageOf(() => inspectArchive('archive' as never)),
    ]).toMatchInlineSnapshot(`
      [
        "input: expected { model, tokens, layers }, got undefined. Pass it as the types say.",
        "options: expected { bytesPerToken }, and what else is set, got undefined. Pass it as the types say.",
        "model: expected a model, as modelFrom gives it, got undefined. Pass it as the types say.",
        "layers: expected at least one layer, got undefined. Give what is to be packed.",
        "archive: expected the bytes of a file, a Uint8Array, got undefined. Pass what readFile gives.",
        "archive: expected the bytes of a file, a Uint8Array, got "archive". Pass what readFile gives.",
      ]
    `);
  });

  it('has a budget below what is exact, or options out of range', () => {
    expect(pack({}, { bytesPerToken: 5 }).replace(/\d+/g, 'N')).toMatchInlineSnapshot(
      `"bytesPerToken: expected at least N, as header, means and N exact tokens take N bytes, got N. Raise it, or keep fewer tokens exact."`,
    );
    expect(pack({}, { bytesPerToken: 0 })).toMatchInlineSnapshot(
      `"bytesPerToken: expected a number above 0, got 0. f16 takes 4 * model.width."`,
    );
    expect(pack({}, { bytesPerToken: Number.NaN })).toMatchInlineSnapshot(
      `"bytesPerToken: expected a number above 0, got NaN. f16 takes 4 * model.width."`,
    );
    expect(pack({}, { sinks: -1 })).toMatchInlineSnapshot(
      `"sinks: expected a whole number from 0 to 16777216, got -1. Leave it out for 4."`,
    );
    expect(pack({}, { window: 0.5 })).toMatchInlineSnapshot(
      `"window: expected a whole number from 0 to 16777216, got 0.5. Leave it out for 64."`,
    );
    expect(pack({}, { jointLayers: 0 })).toMatchInlineSnapshot(
      `"jointLayers: expected a whole number from 1 to 1024, got 0. Leave it out for 1."`,
    );
  });
});
