import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { layoutSequence, type PartName } from '../../../codegen/plan/layout.js';
import { geometryOf } from '../../../dsl/geometry.js';
import {
  asymmetric,
  defineScheme,
  hadamard,
  lloydMax,
  modelFrom,
  perChannel,
  perHead,
  perToken,
  symmetric,
  unrope,
} from '../../../dsl/index.js';
import { decodeSequence, vectorAt } from '../../../runtime/reference/index.js';
import { unpackShare } from '../../../runtime/reference/unpackShare.js';
import { attendDraws, attendSetting } from '../../../runtime/verify/attendDraws.js';
import { codeValues } from '../../../runtime/verify/codeValues.js';
import { halfValues, largestOf } from '../../../runtime/verify/draws.js';

/** Three KV heads of 48 channels: rows of scales and of 3-bit fields end within a word. */
const model = modelFrom({
  model_type: 'llama',
  hidden_size: 144,
  num_hidden_layers: 1,
  num_attention_heads: 3,
  num_key_value_heads: 3,
  head_dim: 48,
  max_position_embeddings: 1024,
});
const stream = lloydMax({ bits: 8 });
const g = geometryOf(
  defineScheme({
    name: 'straddling',
    keys: [perChannel(asymmetric({ bits: 3 }), { tokens: 16 })],
    values: [hadamard(), perToken(lloydMax({ bits: 3 }))],
    sinks: 1,
    window: 2,
    stream,
  }),
  model,
);

/** Little-endian bytes of fields side by side, the first in the lowest bits. */
function packed(fields: readonly number[], bits: number, words: number): Uint8Array {
  let row = 0n;
  for (const [i, field] of fields.entries()) row |= BigInt(field) << BigInt(i * bits);
  return Uint8Array.from({ length: words * 4 }, (_, byte) => Number((row >> BigInt(8 * byte)) & 255n));
}

test('codes that straddle words, and scales of heads and blocks, are read as the layout says', () => {
  const layout = layoutSequence(g, { tokens: 21, generated: 0 });
  const share = new Uint8Array(layout.bytes).fill(0xff);
  const at = (name: PartName) => layout.parts.find((part) => part.name === name)!.offset;
  const code = (token: number, head: number, channel: number, salt: number) =>
    (token * 5 + head * 3 + channel * 7 + salt) % 8;
  const middle = 18;
  for (let token = 0; token < middle; token++) {
    for (let head = 0; head < 3; head++) {
      for (const [name, salt] of [
        ['keyCodes', 0],
        ['valueCodes', 1],
      ] as const) {
        // 48 fields of 3 bits take four words and a half.
        const fields = Array.from({ length: 48 }, (_, channel) => code(token, head, channel, salt));
        share.set(packed(fields, 3, 5), at(name) + (token * 3 + head) * 20);
      }
    }
  }
  const view = new DataView(share.buffer);
  // 1 is 0x3c00, and the next number of float16 is 2^-10 more.
  const half = (part: PartName, index: number, steps: number) =>
    view.setUint16(at(part) + index * 2, 0x3c00 + steps, true);
  for (let row = 0; row < 2; row++) {
    for (let i = 0; i < 144; i++) {
      half('keyScales', row * 144 + i, row * 200 + i);
      half('keyOffsets', row * 144 + i, row * 200 + 2 * i);
    }
  }
  // Three scales of a token take two words.
  for (let token = 0; token < middle; token++) {
    for (let head = 0; head < 3; head++) half('valueScales', token * 4 + head, 10 * token + head);
  }
  const lengths = { sinkTokens: 1, middleTokens: middle, streamTokens: 0, windowTokens: 2, windowStart: 0 };
  const parts = unpackShare(g, layout, share, { ...lengths, promptTokens: 21 }, codeValues(g));

  const { keys, values } = parts.middle;
  const all = (salt: number) =>
    Array.from({ length: middle * 144 }, (_, i) => code(Math.floor(i / 144), Math.floor(i / 48) % 3, i % 48, salt));
  expect([...keys.codes]).toEqual(all(0));
  expect([...values.codes]).toEqual(all(1));
  const steps = (numbers: Float64Array) => Array.from(numbers, (number) => (number - 1) * 1024);
  expect(steps(keys.scales)).toEqual([0, 200].flatMap((row) => Array.from({ length: 144 }, (_, i) => row + i)));
  expect(steps(keys.offsets!)).toEqual([0, 200].flatMap((row) => Array.from({ length: 144 }, (_, i) => row + 2 * i)));
  expect(steps(values.scales)).toEqual(Array.from({ length: middle * 3 }, (_, i) => 10 * Math.floor(i / 3) + (i % 3)));
  expect(values.offsets).toBeUndefined();
  expect(parts.middle).toMatchObject({
    tokens: 18,
    firstPosition: 1,
    keys: { form: 'cached', block: { tokens: 16, channels: 1 } },
    values: { form: 'turned', block: { tokens: 1, channels: 48 } },
  });
});

const schemes = [
  g.scheme,
  defineScheme({
    name: 'whole',
    keys: [unrope(), perChannel(symmetric({ bits: 4 }), { tokens: 128 })],
    values: [perHead(asymmetric({ bits: 2 }))],
    sinks: 0,
    window: 3,
    stream,
  }),
];

describe.each(schemes)('drawn sequences in the codes of "$name"', (scheme) => {
  const own = geometryOf(scheme, model);
  const settings = fc
    .sample(attendDraws(own), { numRuns: 30, seed: 7 })
    .map((draw) => ({ draw, setting: attendSetting(own, draw) }));
  const sequences = settings.flatMap(({ draw, setting }) =>
    setting.sequences.map((sequence, i) => ({ ...sequence, draw: draw.sequences[i]! })),
  );

  test('are read back from their shares as they were drawn', () => {
    for (const { layout, share, lengths, decoded } of sequences) {
      expect(decodeSequence(unpackShare(own, layout, share, lengths, codeValues(own)))).toEqual(decoded);
    }
  });

  test('are of every length about a block, of scales of many magnitudes and of zero, and within float16', () => {
    const side = Math.max(own.keys.scaleTokens, own.values.scaleTokens);
    const lengths = new Set(sequences.map(({ draw }) => draw.middle));
    for (const length of [0, side - 1, side, side + 1]) expect(lengths).toContain(length);
    const scales = sequences.flatMap(({ layout, share, lengths: used, draw }) => {
      const { middle } = unpackShare(own, layout, share, used, codeValues(own));
      return [...middle.keys.scales].map((scale) => scale / draw.magnitude);
    });
    expect(scales).toContain(0);
    const stored = scales.filter((scale) => scale > 0);
    expect(Math.max(...stored) / Math.min(...stored)).toBeGreaterThan(2 ** 9);
    for (const { decoded } of sequences) {
      for (const { data } of [decoded.keys, decoded.values]) {
        expect(data.every((x) => Math.abs(x) <= 65504)).toBe(true);
      }
    }
  });

  test('are asked for scores of the magnitude that was drawn, as far as a query of float16 can ask', () => {
    const attained: boolean[] = [];
    for (const { draw, setting } of settings) {
      for (const [index, { decoded }] of setting.sequences.entries()) {
        const { reach } = draw.sequences[index]!;
        if (reach < 1 || decoded.keys.tokens === 0) continue;
        const first = index * draw.queries * own.heads * own.headDim;
        const query = halfValues(setting.query.subarray(first, first + own.headDim));
        const scores = Array.from({ length: decoded.keys.tokens }, (_, token) =>
          vectorAt(decoded.keys, 0, token).reduce((sum, k, i) => sum + k * query[i]!, 0),
        );
        attained.push(Math.abs((largestOf(scores) * model.scoreScale) / reach - 1) < 0.05);
      }
    }
    expect(attained.length).toBeGreaterThan(20);
    expect(attained.filter((is) => is).length / attained.length).toBeGreaterThan(0.9);
  });
});
