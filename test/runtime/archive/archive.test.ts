import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { modelFrom } from '../../../dsl/model.js';
import { archiveErrors } from '../../../runtime/archive/errors.js';
import { inspectArchive } from '../../../runtime/archive/inspect.js';
import { type ArchiveInput, packArchive } from '../../../runtime/archive/pack.js';
import { numbersOf, rowsOf } from '../../../runtime/archive/rows.js';
import { unpackArchive } from '../../../runtime/archive/unpack.js';
import { meanOf, secondMomentOf, topEigenvectors } from '../../../runtime/reference/index.js';
import { config, correlated, messageOf, narrow } from './case.js';

/** `sqrt(sum |b - a|^2 / sum |a|^2)` over some tokens, computed here from the f16 numbers alone. */
function lostOf(
  { model, tokens }: ArchiveInput,
  [exact, read]: readonly [Uint16Array, Uint16Array],
  [from, to]: readonly [number, number],
): number {
  const [a, b] = [numbersOf(exact), numbersOf(read)];
  let [squares, errors] = [0, 0];
  a.forEach((x, index) => {
    const token = Math.floor(index / model.headDim) % tokens;
    if (token < from || token >= to) return;
    squares += x * x;
    errors += (b[index]! - x) ** 2;
  });
  return squares === 0 ? Math.sqrt(errors) : Math.sqrt(errors / squares);
}

/** What normal components of these variances lose at best for so many bits together: reverse water-filling. */
function shannonBound(variances: Float64Array, bits: number): number {
  let [low, high] = [0, Math.max(...variances)];
  for (let round = 0; round < 200; round++) {
    const level = (low + high) / 2;
    const rate = variances.reduce((sum, variance) => sum + Math.max(0, 0.5 * Math.log2(variance / level)), 0);
    if (rate > bits) low = level;
    else high = level;
  }
  return variances.reduce((sum, variance) => sum + Math.min(variance, high), 0);
}

describe('an archive', () => {
  const input = correlated(600, [1, 3]);
  const options = { bytesPerToken: 30, sinks: 4, window: 20 };
  const file = packArchive(input, options);
  const summary = inspectArchive(file);
  const read = unpackArchive(file, { model: narrow });

  it('takes no more than its budget, and nearly all of it', () => {
    expect(file.length).toBeLessThanOrEqual(30 * 600 * 2);
    expect(file.length).toBeGreaterThan(0.99 * 30 * 600 * 2);
    expect(summary).toMatchObject({
      ...{ tokens: 600, sinks: 4, window: 20, coded: 576, layers: [1, 3], bytes: file.length, basis: undefined },
      fp16Bytes: 2 * 600 * 32 * 4,
    });
  });

  it('keeps sinks and window to the bit', () => {
    for (const [index, { keys, values }] of input.layers.entries()) {
      for (const ends of [
        [0, 4],
        [580, 600],
      ] as const) {
        expect(lostOf(input, [keys, read.layers[index]!.keys], ends)).toBe(0);
        expect(lostOf(input, [values, read.layers[index]!.values], ends)).toBe(0);
      }
    }
  });

  it('states what its coded tokens lose', () => {
    for (const { operand, layers, error } of summary.parts) {
      const place = input.layers.findIndex(({ layer }) => layer === layers[0]);
      const measured = lostOf(input, [input.layers[place]![operand], read.layers[place]![operand]], [4, 580]);
      // But for rounding to f16, whose relative error is 2^-11 at most.
      expect(Math.abs(measured - error)).toBeLessThan(2 ** -11);
      expect(error).toBeGreaterThan(0.005);
      expect(error).toBeLessThan(0.3);
    }
  });

  // A quarter of a bit is what even steps cost at best, and scales take four to five bits of a token and group.
  it.each([36, 48, 64])(
    'at %d bytes a token loses no less than theory allows, and no more than with a bit less a component',
    (bytesPerToken) => {
      const input = correlated(600, [1, 3], { decay: 0.95 });
      const packed = packArchive(input, { ...options, bytesPerToken });
      const decoded = unpackArchive(packed);
      for (const part of inspectArchive(packed).parts) {
        if (part.operand !== 'values') continue;
        const place = input.layers.findIndex(({ layer }) => layer === part.layers[0]);
        const exact = input.layers[place]!.values;
        const rows = rowsOf({ bits: exact, kvHeads: 2, tokens: 600, headDim: 16 }, 4, 576, undefined);
        const variances = topEigenvectors(secondMomentOf(rows, meanOf(rows)), 32).values;
        const squares = rows.data.reduce((sum, x) => sum + x * x, 0);
        const lost = lostOf(input, [exact, decoded.layers[place]!.values], [4, 580]) ** 2 * (squares / 576);
        const bits = (part.groups.reduce((sum, { bytes }) => sum + bytes, 0) * 8) / 576;
        const { length: coded } = variances.filter((variance) => variance > lost / 32);
        expect(lost).toBeGreaterThan(shannonBound(variances, bits));
        expect(lost).toBeLessThan(shannonBound(variances, bits - coded));
      }
    },
  );

  it('loses less with more bytes', () => {
    const errors = [24, 30, 40, 60, 90].map((bytesPerToken) => {
      const parts = inspectArchive(packArchive(input, { ...options, bytesPerToken })).parts;
      return parts.reduce((sum, { error }) => sum + error ** 2, 0);
    });
    for (const [index, error] of errors.slice(1).entries()) expect(error).toBeLessThan(errors[index]!);
  });

  it('gives more bits to components of larger variance, and leaves the last ones out', () => {
    for (const { groups, rank, width } of summary.parts) {
      expect(rank).toBeLessThan(width);
      expect(groups[0]!.bits).toBeGreaterThan(groups.at(-1)!.bits);
    }
  });

  it('is the same file again', () => expect(packArchive(input, options)).toEqual(file));

  it('is read from the middle of another buffer', () => {
    const within = new Uint8Array(file.length + 3);
    within.set(file, 3);
    expect(unpackArchive(within.subarray(3))).toEqual(read);
    expect(unpackArchive(Buffer.from(file))).toEqual(read);
  });

  it('compares what was read back as this test does', () => {
    const [before, after] = [input.layers[1]!, read.layers[1]!];
    const errors = archiveErrors(narrow, { ...before, tokens: 600 }, after);
    expect(errors.layer).toBe(3);
    expect(errors.keys).toBeCloseTo(lostOf(input, [before.keys, after.keys], [0, 600]), 12);
    expect(errors.values).toBeCloseTo(lostOf(input, [before.values, after.values], [0, 600]), 12);
    expect(errors.attention).toBeUndefined();
  });
});

describe('layers that share a basis', () => {
  // Layers of the same numbers: what one component codes of the first, it codes of the second.
  const one = correlated(400, [0]);
  const twins = { ...one, layers: [0, 1, 2].map((layer) => ({ ...one.layers[0]!, layer })) };
  const error = (jointLayers: number) => {
    const file = packArchive(twins, { bytesPerToken: 30, sinks: 2, window: 10, jointLayers });
    const read = unpackArchive(file);
    return [
      inspectArchive(file).parts.map(({ layers }) => layers),
      Math.max(...read.layers.map(({ values }) => lostOf(one, [one.layers[0]!.values, values], [2, 390]))),
    ] as const;
  };

  it('lose less where they are alike', () => {
    const [alone, aloneError] = error(1);
    expect(alone).toEqual([[0], [0], [1], [1], [2], [2]]);
    const [pairs, pairsError] = error(2);
    expect(pairs).toEqual([[0, 1], [0, 1], [2], [2]]);
    const [all, allError] = error(1024);
    expect(all).toEqual([
      [0, 1, 2],
      [0, 1, 2],
    ]);
    expect(allError).toBeLessThan(0.5 * aloneError);
    expect(pairsError).toBeLessThan(aloneError * 1.001);
  });
});

describe('the bases of another archive', () => {
  const long = correlated(600, [1, 3]);
  const first = packArchive(long, { bytesPerToken: 60 });
  const prefix = (tokens: number): ArchiveInput => {
    const cut = (bits: Uint16Array) =>
      Uint16Array.from([0, 1].flatMap((head) => [...bits.subarray(head * 600 * 16, (head * 600 + tokens) * 16)]));
    return {
      ...{ model: narrow, tokens },
      layers: long.layers.map(({ layer, keys, values }) => ({ layer, keys: cut(keys), values: cut(values) })),
    };
  };
  const short = prefix(200);
  const options = { bytesPerToken: 65, sinks: 4, window: 16 };
  const file = packArchive(short, { ...options, basis: first });

  it('spare a short cache its own, so that it loses less', () => {
    const errorsOf = (packed: Uint8Array) => Math.max(...inspectArchive(packed).parts.map(({ error }) => error));
    expect(file.length).toBeLessThanOrEqual(65 * 200 * 2);
    expect(errorsOf(file)).toBeLessThan(0.8 * errorsOf(packArchive(short, options)));
    expect(inspectArchive(file).parts.every(({ basisBytes }) => basisBytes === 0)).toBe(true);
    const read = unpackArchive(file, { model: narrow, basis: first });
    for (const [index, { error, operand }] of inspectArchive(file).parts.entries()) {
      const place = Math.floor(index / 2);
      const both = [short.layers[place]![operand], read.layers[place]![operand]] as const;
      expect(Math.abs(lostOf(short, both, [4, 184]) - error)).toBeLessThan(2 ** -11);
    }
  });

  it('are asked for, and no others taken', () => {
    const digests = (text: string) => text.replace(/[0-9a-f]{64}/g, 'DIGEST');
    const other = packArchive(prefix(300), { bytesPerToken: 60 });
    expect(digests(messageOf(() => unpackArchive(file)))).toMatchInlineSnapshot(
      `"basis: expected the archive whose bases have the sha256 DIGEST, got none. Give the archive that this one was packed with."`,
    );
    expect(digests(messageOf(() => unpackArchive(file, { basis: other })))).toMatchInlineSnapshot(
      `"basis: expected bases of sha256 DIGEST, got an archive with bases of sha256 DIGEST. Give the archive that this one was packed with."`,
    );
    expect(digests(messageOf(() => unpackArchive(first, { basis: other })))).toMatchInlineSnapshot(
      `"basis: expected none, as the archive has its own, got an archive with bases of sha256 DIGEST. Leave it out."`,
    );
    expect(digests(messageOf(() => unpackArchive(file, { basis: file })))).toMatchInlineSnapshot(
      `"basis: expected the archive whose bases have the sha256 DIGEST, got none. Give the archive that this one was packed with."`,
    );
    const fewer = { ...short, layers: short.layers.slice(1) };
    expect(messageOf(() => packArchive(fewer, { ...options, basis: first }))).toMatchInlineSnapshot(
      `"basis: expected bases for layers 3, 1 at a time, got those of layers 1, 3, 1 at a time. Pack the same layers as the archive whose bases are used."`,
    );
    expect(messageOf(() => packArchive(short, { ...options, basis: first, jointLayers: 2 }))).toMatchInlineSnapshot(
      `"basis: expected bases for layers 1, 3, 2 at a time, got those of layers 1, 3, 1 at a time. Pack the same layers as the archive whose bases are used."`,
    );
  });
});

describe('any shape', () => {
  const shape = fc.record({
    kvHeads: fc.integer({ min: 1, max: 3 }),
    pairs: fc.integer({ min: 1, max: 9 }),
    tokens: fc.oneof(fc.constantFrom(0, 1, 2), fc.integer({ min: 3, max: 60 })),
    sinks: fc.integer({ min: 0, max: 5 }),
    window: fc.integer({ min: 0, max: 9 }),
    layers: fc.subarray([0, 1, 2, 3], { minLength: 1 }),
    jointLayers: fc.integer({ min: 1, max: 3 }),
    seed: fc.nat(1000),
  });

  it('goes there and back within its stated error, and its ends exactly', () => {
    fc.assert(
      fc.property(shape, ({ kvHeads, pairs, tokens, sinks, window, layers, jointLayers, seed }) => {
        const headDim = 2 * pairs;
        const model = modelFrom({
          ...config,
          num_attention_heads: kvHeads,
          num_key_value_heads: kvHeads,
          head_dim: headDim,
        });
        const input = correlated(tokens, layers, { model, seed });
        const file = packArchive(input, { bytesPerToken: 20_000, sinks, window, jointLayers });
        const read = unpackArchive(file, { model });
        const { parts, coded, bytes } = inspectArchive(file);
        expect(coded).toBe(Math.max(0, tokens - sinks - window));
        expect(bytes).toBe(file.length);
        expect(read.layers.map(({ layer }) => layer)).toEqual(layers);
        const end = coded === 0 ? 0 : sinks + coded;
        for (const { operand, layers: own, error } of parts) {
          const lost = own.map((layer) => {
            const place = layers.indexOf(layer);
            const both = [input.layers[place]![operand], read.layers[place]![operand]] as const;
            expect(both[1].length).toBe(both[0].length);
            expect(lostOf(input, both, [0, coded === 0 ? tokens : sinks])).toBe(0);
            expect(lostOf(input, both, [end, tokens])).toBe(0);
            return lostOf(input, both, [sinks, end]);
          });
          expect(Math.min(...lost)).toBeLessThanOrEqual(error + 2 ** -10);
          // Bytes are plenty here: eight bits a component.
          expect(error).toBeLessThan(0.02);
        }
      }),
      { numRuns: 25 },
    );
  });

  it('of numbers that do not vary, or are zero, or the largest', () => {
    for (const bits of [0, 0x3c00, 0x7bff, 0xfbff]) {
      const same = new Uint16Array(2 * 50 * 16).fill(bits);
      const input = { model: narrow, tokens: 50, layers: [{ layer: 0, keys: same, values: same }] };
      const read = unpackArchive(packArchive(input, { bytesPerToken: 2000, sinks: 1, window: 1 }));
      const values = numbersOf(read.layers[0]!.values);
      const [exact] = numbersOf(same);
      for (const x of values) expect(Math.abs(x - exact!)).toBeLessThanOrEqual(Math.abs(x) * 2 ** -10);
      expect(read.layers[0]!.keys.every((half) => (half & 0x7c00) !== 0x7c00)).toBe(true);
    }
  });
});
