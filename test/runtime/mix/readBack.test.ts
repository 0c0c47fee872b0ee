import { describe, expect, test } from 'vitest';
import type { ScalarCodec } from '../../../dsl/codec.js';
import {
  asymmetric,
  defineScheme,
  geometryOf,
  hadamard,
  lloydMax,
  midRise,
  nuq,
  outliers,
  perChannel,
  perHead,
  perToken,
  polar,
  type ScalarScheme,
  symmetric,
  unrope,
} from '../../../dsl/index.js';
import { readBack } from '../../../runtime/mix/readBack.js';
import {
  type Cache,
  decodeScalar,
  emptyTensor,
  encodeScalar,
  normalFrom,
  type ScalarCoding,
  type ScalarRule,
  seededRandom,
  vectorAt,
} from '../../../runtime/reference/index.js';
import { model } from './recording.js';

const tokens = 60;
const ends = { sinks: 4, window: 8 };
const middle = { first: 4, tokens: 48 };
const rope = { invFreq: model.rope.invFreq, pairing: model.rope.pairing };

/** Not float16, which lie half-way between two codes now and then: either is right there. */
function drawn(seed: number): Cache {
  const random = seededRandom(seed);
  const tensor = () => {
    const zeros = emptyTensor(model.kvHeads, tokens, model.headDim);
    return { ...zeros, data: zeros.data.map((_, i) => normalFrom(random) * (1 + (i % 5))) };
  };
  return { keys: tensor(), values: tensor() };
}

const scheme = (keys: ScalarScheme['keys'], values: ScalarScheme['values']): ScalarScheme =>
  defineScheme({ name: 'case', keys, values, ...ends, stream: lloydMax({ bits: 4 }) });

/** What the reference, which shares no code with codecs, knows of a codec. */
const rule = (codec: ScalarCodec, channels: number, form: Pick<ScalarRule, 'offset' | 'scale'>): ScalarRule => {
  const levels = codec.levels(channels);
  // The lowest code of `symmetric` is never chosen.
  return { levels: codec.name === 'symmetric' ? levels.slice(1) : levels, ...form };
};
const least = { offset: 'least', scale: 'largest' } as const;
const largest = { offset: 'none', scale: 'largest' } as const;
const norm = { offset: 'none', scale: 'norm' } as const;

describe('what is read back', () => {
  test.each<[string, ScalarScheme, ScalarCoding, ScalarCoding]>([
    [
      'asymmetric by channel and by token',
      scheme(
        [perChannel(asymmetric({ bits: 2 }), { tokens: 32 })],
        [perToken(asymmetric({ bits: 4 }), { channels: 16 })],
      ),
      { rule: rule(asymmetric({ bits: 2 }), 16, least), form: 'cached', block: { tokens: 32, channels: 1 } },
      { rule: rule(asymmetric({ bits: 4 }), 16, least), form: 'cached', block: { tokens: 1, channels: 16 } },
    ],
    [
      'before RoPE and after Hadamard',
      scheme([unrope(), perChannel(symmetric({ bits: 4 }))], [hadamard(), perToken(lloydMax({ bits: 3 }))]),
      { rule: rule(symmetric({ bits: 4 }), 16, largest), form: 'unrotated', block: { tokens: 'prompt', channels: 1 } },
      { rule: rule(lloydMax({ bits: 3 }), 16, norm), form: 'turned', block: { tokens: 1, channels: 16 } },
    ],
    [
      'as radius and angle',
      scheme([polar(), perChannel(midRise({ bits: 4 }), { tokens: 16 })], [perToken(midRise({ bits: 2 }))]),
      { rule: rule(midRise({ bits: 4 }), 16, least), form: 'polar', block: { tokens: 16, channels: 1 } },
      { rule: rule(midRise({ bits: 2 }), 16, least), form: 'cached', block: { tokens: 1, channels: 16 } },
    ],
    [
      'by head',
      scheme([hadamard(), perHead(symmetric({ bits: 8 }))], [perHead(asymmetric({ bits: 2 }))]),
      { rule: rule(symmetric({ bits: 8 }), 16, largest), form: 'turned', block: { tokens: 'prompt', channels: 16 } },
      { rule: rule(asymmetric({ bits: 2 }), 16, least), form: 'cached', block: { tokens: 'prompt', channels: 16 } },
    ],
  ])('is what the reference decodes: %s', (_, given, keys, values) => {
    const exact = drawn(7);
    const wanted = decodeScalar(encodeScalar(exact, model, { keys, values, ...ends }));
    const geometry = geometryOf(given, model);
    for (const operand of ['keys', 'values'] as const) {
      const read = readBack(geometry[operand], exact[operand], middle, rope);
      let worst = 0;
      for (let token = middle.first; token < middle.first + middle.tokens; token++) {
        for (let head = 0; head < model.kvHeads; head++) {
          const known = vectorAt(wanted[operand], head, token);
          vectorAt(read, head, token).forEach((x, i) => {
            worst = Math.max(worst, Math.abs(x - known[i]!));
          });
        }
      }
      // Levels are float32 where kernels read them, float64 in the reference; numbers are below 32.
      expect(worst).toBeLessThan(32 * 2 ** -23);
    }
  });

  test('has the numbers farthest from their codes exact, to f16, where outliers are kept', () => {
    const exact = drawn(3).values;
    const coded = perToken(nuq({ bits: 2 }), { trim: 0.1 });
    const plain = readBack(geometryOf(scheme([coded], [coded]), model).values, exact, middle, rope);
    const kept = readBack(
      geometryOf(scheme([coded], [coded, outliers({ cap: 1 })]), model).values,
      exact,
      middle,
      rope,
    );
    for (let head = 0; head < model.kvHeads; head++) {
      for (let token = middle.first; token < middle.first + middle.tokens; token++) {
        const [x, without, beside] = [exact, plain, kept].map((tensor) => vectorAt(tensor, head, token));
        // A tenth of 16 channels is one at each end: the range ends at the second least and the second greatest.
        const sorted = x!.slice().sort();
        const beyond = [...x!.keys()].filter((i) => x![i]! < sorted[1]! || x![i]! > sorted[14]!);
        const errors = x!.map((number, i) => Math.abs(number - without![i]!));
        const changed = [...x!.keys()].filter((i) => beside![i] !== without![i]);
        const [farthest] = beyond.sort((a, b) => errors[b]! - errors[a]!);
        expect(changed).toEqual(farthest === undefined ? [] : [farthest]);
        for (const i of changed) expect(Math.abs(beside![i]! - x![i]!)).toBeLessThanOrEqual(errors[i]! * 2 ** -11);
      }
    }
  });

  test('of sinks and window is what was given', () => {
    const exact = drawn(5).keys;
    const coded = [perToken(asymmetric({ bits: 2 }))] as const;
    const read = readBack(geometryOf(scheme(coded, coded), model).keys, exact, middle, rope);
    for (let token = 0; token < tokens; token++) {
      const same = vectorAt(read, 1, token).every((x, i) => x === vectorAt(exact, 1, token)[i]);
      expect(same).toBe(token < 4 || token >= 52);
    }
  });
});
