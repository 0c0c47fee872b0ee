import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { layoutSequence, type PartName, splitPrompt } from '../../codegen/plan/layout.js';
import type { ScalarCodec } from '../../dsl/codec.js';
import { geometryOf, type ScalarGeometry, type ScalarGroups } from '../../dsl/geometry.js';
import {
  asymmetric,
  defineScheme,
  float8,
  hadamard,
  lloydMax,
  midRise,
  modelFrom,
  perChannel,
  perHead,
  perToken,
  polar,
  symmetric,
  unrope,
} from '../../dsl/index.js';
import type { ScalarScheme } from '../../dsl/scheme.js';
import {
  type Cache,
  emptyTensor,
  encodeScalar,
  type ScalarCoding,
  type ScalarRule,
} from '../../runtime/reference/index.js';
import { codingOf } from '../../runtime/reference/unpackScalar.js';
import { unpackShare } from '../../runtime/reference/unpackShare.js';
import { checkScalar } from '../../runtime/verify/checkScalar.js';
import { codedErrors } from '../../runtime/verify/checkStream.js';
import { codecValues, codeValues } from '../../runtime/verify/codeValues.js';
import { halfBits, halfValues, type Kind, kinds, numbers } from '../../runtime/verify/draws.js';
import { Judge } from '../../runtime/verify/judge.js';
import { packParts } from '../../runtime/verify/packParts.js';

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

const schemes = [
  defineScheme({
    name: 'turned',
    keys: [hadamard(), perToken(symmetric({ bits: 4 }))],
    values: [hadamard(), perToken(lloydMax({ bits: 3 }))],
    sinks: 4,
    window: 8,
    stream,
  }),
  defineScheme({
    name: 'blocks',
    keys: [perChannel(asymmetric({ bits: 2 }), { tokens: 16 })],
    values: [perToken(asymmetric({ bits: 2 }), { channels: 16 })],
    sinks: 0,
    window: 8,
    stream,
  }),
  defineScheme({
    name: 'whole',
    keys: [unrope(), perChannel(symmetric({ bits: 8 }))],
    values: [perHead(asymmetric({ bits: 3 }))],
    sinks: 2,
    window: 1,
    stream,
  }),
  defineScheme({
    name: 'pairs',
    keys: [polar(), perChannel(midRise({ bits: 4 }), { tokens: 16 })],
    values: [perToken(midRise({ bits: 2 }))],
    sinks: 0,
    window: 8,
    stream,
  }),
];

/** The rule of a codec in float64. */
function ruleOf({ name, device }: ScalarCodec, levels: readonly number[]): ScalarRule {
  return {
    // The lowest code of symmetric steps is none that a number gets.
    levels: name === 'symmetric' ? levels.map((level, code) => (code === 0 ? -Infinity : level)) : levels,
    offset: device.offset ? 'least' : 'none',
    scale: name === 'lloydMax' ? 'norm' : 'largest',
  };
}

function scalarCoding(groups: ScalarGroups): ScalarCoding {
  const { codec, levelChannels } = groups;
  return { ...codingOf(groups), rule: ruleOf(codec, [...codecValues(codec, levelChannels)]) };
}

interface Encoded {
  readonly g: ScalarGeometry;
  readonly prompt: Cache;
  readonly share: Uint8Array;
  /** Where a part begins in the share. */
  readonly at: (part: PartName) => number;
  readonly judged: (share: Uint8Array) => Judge;
}

const tokens = 50;

/** A share as float64 encodes it, and the judge of that share or another. */
function encoded(scheme: ScalarScheme, kind: Kind): Encoded {
  const g = geometryOf(scheme, model);
  const drawn = (seed: number) => {
    const bits = halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim));
    return { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(bits) };
  };
  const prompt = { keys: drawn(1), values: drawn(2) };
  const { sinks, window } = scheme;
  const parts = encodeScalar(prompt, model, {
    keys: scalarCoding(g.keys),
    values: scalarCoding(g.values),
    sinks,
    window,
  });
  const layout = layoutSequence(g, { tokens, generated: 0 });
  const share = new Uint8Array(layout.bytes);
  packParts(g, layout, { ...parts, windowStart: 0 }, share);
  const split = splitPrompt(g, tokens);
  const lengths = {
    sinkTokens: split.sinks,
    middleTokens: split.middle,
    streamTokens: 0,
    windowTokens: split.window,
    windowStart: 0,
    promptTokens: tokens,
  };
  return {
    g,
    prompt,
    share,
    at: (name) => layout.parts.find((part) => part.name === name)!.offset,
    judged: (bytes) => {
      const judge = new Judge();
      const held = unpackShare(g, layout, bytes, lengths, codeValues(g));
      checkScalar(g, { parts: held, layout, share: bytes }, prompt, judge);
      return judge;
    },
  };
}

/** What the judge says of a share after a change of its 16-bit word at a byte. */
function afterChange({ share, judged }: Encoded, byte: number, change: (word: number) => number): readonly string[] {
  const broken = share.slice();
  const view = new DataView(broken.buffer);
  view.setUint16(byte, change(view.getUint16(byte, true)), true);
  return judged(broken).failures.map(({ what }) => what);
}

describe.each(schemes)('a prompt in the codes of "$name"', (scheme) => {
  test.each(kinds)('of the kind "%s" passes as float64 encodes it', (kind) => {
    const { share, judged } = encoded(scheme, kind);
    expect(judged(share).failures).toEqual([]);
  });

  const one = encoded(scheme, 'normal');
  const { g } = one;

  test('fails with one wrong code anywhere, and says where', () => {
    const middle = tokens - g.scheme.sinks - g.scheme.window;
    const place = fc.record({
      name: fc.constantFrom('keys' as const, 'values' as const),
      token: fc.nat(middle - 1),
      head: fc.nat(g.kvHeads - 1),
      channel: fc.nat(g.headDim - 1),
    });
    fc.assert(
      fc.property(place, ({ name, token, head, channel }) => {
        const { bits, headWords } = g[name];
        const bit = (token * g.kvHeads + head) * headWords * 32 + channel * bits;
        const byte = one.at(name === 'keys' ? 'keyCodes' : 'valueCodes') + Math.floor(bit / 8);
        const failures = afterChange(one, byte, (word) => word ^ (1 << (bit % 8)));
        const { name: codec } = g[name].codec;
        expect(failures).toContain(
          `${name}: code, from what ${codec} gives for the stored scale: KV head ${head}, middle token ${token}, channel ${channel}`,
        );
        expect(failures).toContain(
          `${name}: code past the midpoint to the nearest level: KV head ${head}, middle token ${token}, channel ${channel}`,
        );
      }),
      { numRuns: 20 },
    );
  });

  test.each(['keys', 'values'] as const)('fails with a scale of %s one step of float16 off', (name) => {
    const part = name === 'keys' ? 'keyScales' : 'valueScales';
    for (const step of [-1, 1]) {
      const failures = afterChange(one, one.at(part) + 2, (word) => word + step);
      expect(failures[0]).toMatch(
        new RegExp(`^${name}: scale, in f16 steps: KV head \\d, middle tokens 0 to \\d+, channels`),
      );
    }
  });

  test('fails with a scale that is not a number', () => {
    const failures = afterChange(one, one.at('keyScales'), () => 0x7e00);
    expect(failures[0]).toMatch(/^keys: scale, in f16 steps: KV head 0, middle tokens 0 to \d+, channels 0 to/);
  });
});

const [turned, blocks, whole] = schemes.map((scheme) => encoded(scheme, 'normal'));

test('an offset one step of float16 off fails', () => {
  for (const [share, part, name] of [
    [blocks!, 'keyOffsets', 'keys'],
    [blocks!, 'valueOffsets', 'values'],
    [whole!, 'valueOffsets', 'values'],
  ] as const) {
    const [first] = afterChange(share, share.at(part), (word) => word + 1);
    expect(first).toMatch(new RegExp(`^${name}: offset, in f16 steps: KV head 0, middle tokens 0 to`));
  }
});

test('bits beside the fields, and beside the last scale of a row, fail', () => {
  // 48 channels of 3 bits leave 16 bits of five words; three scales leave half of two words.
  expect(afterChange(turned!, turned!.at('valueCodes') + 18, (word) => word | 4)).toEqual([
    'valueCodes: byte 18 holds bits beside the fields',
  ]);
  expect(afterChange(turned!, turned!.at('keyScales') + 6, () => 0x3c00)).toEqual([
    'keyScales: byte 7 holds bits beside the fields',
  ]);
});

describe("a user's codec", () => {
  /** Rounds down, which is not to the nearest level. */
  const floor: ScalarCodec = {
    ...asymmetric({ bits: 4 }),
    name: 'floor',
    source: import.meta.url,
    device: { ...asymmetric({ bits: 4 }).device, code: (x) => Math.min(15, Math.floor(x * 15)) },
  };
  const schemeOf = (codec: ScalarCodec) =>
    defineScheme({ name: 'own', keys: [perToken(codec)], values: [perToken(codec)], sinks: 4, window: 8, stream });

  test('is held to its own code, and not to the nearest level', () => {
    const nearest = encoded(schemeOf(floor), 'normal');
    const { failures } = nearest.judged(nearest.share);
    expect(failures.map(({ what }) => what.replace(/\d+/g, 'n'))).toEqual(
      ['keys', 'values'].map(
        (name) => `${name}: code, from what floor gives for the stored scale: KV head n, middle token n, channel n`,
      ),
    );
  });

  test.each([
    ['scale', -1],
    ['scale', Number.NaN],
    ['offset', Number.POSITIVE_INFINITY],
    ['offset', 1 / 3],
  ] as const)('whose %s is %d, which cannot be stored, is named', (role, given) => {
    const codec: ScalarCodec = { ...floor, device: { ...floor.device, [role]: () => given } };
    const { judged, share } = encoded(schemeOf(codec), 'normal');
    expect(judged(share).failures.map(({ what }) => what)).toContain(
      `keys: floor gives what cannot be stored: ${role} ${given}, KV head 0, middle tokens 0 to 0, channels 0 to 47`,
    );
  });
});

test('codes of bytes whose order is not that of their values are judged by these', () => {
  const codec = float8({ format: 'e4m3' });
  const scheme = defineScheme({
    name: 'bytes',
    keys: [perToken(codec)],
    values: [perToken(codec)],
    sinks: 4,
    window: 8,
    stream,
  });
  const own = encoded(scheme, 'zeros');
  // Minus zero is as good as zero, and the byte between them is not.
  expect(afterChange(own, own.at('keyCodes'), () => 0x0080)).toEqual([]);
  expect(afterChange(own, own.at('keyCodes'), () => 0x0040)[0]).toBe(
    'keys: code, from what float8e4m3 gives for the stored scale: KV head 0, middle token 0, channel 0',
  );
});

test('a stream whose scale float16 ends is held to what the codec then does', () => {
  const g = geometryOf(defineScheme({ ...schemes[0]!, stream: symmetric({ bits: 2 }) }), model);
  const values = codecValues(g.scheme.stream, g.headDim);
  // Its blocks of 16 channels, turned, are 65504 * 4 in their first channel alone: minus that in the last block.
  const exact = Float64Array.from({ length: 48 }, (_, i) => (i < 32 ? 65504 : -65504));
  const codes = new Uint8Array(48).fill(2);
  codes.set([3], 0);
  codes.set([3], 16);
  codes.set([1], 32);
  const errors = (given: Uint8Array) => codedErrors(g, { codes: given, norm: 65504 }, exact, values);
  expect(errors(codes)).toEqual({
    refused: undefined,
    scale: { error: 0, bar: 0 },
    code: { error: 0, channel: -1 },
  });
  // The lowest code stands for -2, which is nearer and never given.
  expect(errors(codes.with(32, 0)).code).toEqual({ error: 1, channel: 32 });
});
