import { describe, expect, test } from 'vitest';
import { layoutSequence } from '../../../codegen/plan/layout.js';
import { geometryOf } from '../../../dsl/geometry.js';
import {
  asymmetric,
  defineScheme,
  hadamard,
  lloydMax,
  nuq,
  outliers,
  perChannel,
  perToken,
  presetModel,
  type Scheme,
  shard,
  shardPlus,
  symmetric,
  tiltFast,
  tiltSafe,
  turboQuantProd4,
  unrope,
} from '../../../dsl/index.js';
import { decodeHead } from '../../../runtime/bench/decodeHead.js';
import { partsOfHead } from '../../../runtime/bench/oneHead.js';
import { type CodedSequence, decodeSequence, headRows } from '../../../runtime/reference/index.js';
import { unpackShare } from '../../../runtime/reference/unpackShare.js';
import { syntheticShare } from '../../../runtime/tune/syntheticCache.js';
import { codeValues } from '../../../runtime/verify/codeValues.js';
import { largestOf, worstDifference } from '../../../runtime/verify/draws.js';

const lengths = {
  ...{ sinkTokens: 4, middleTokens: 32, streamTokens: 7, windowTokens: 64, windowStart: 5, promptTokens: 100 },
};

/** Parts that stand for something, and the parts of one of their heads. */
function drawn(scheme: Scheme): { readonly parts: CodedSequence; readonly ofHead: (head: number) => CodedSequence } {
  const g = geometryOf(scheme, presetModel('smollm2-135m'));
  const layout = layoutSequence(g, { tokens: 100, generated: 8 });
  const share = syntheticShare(g, layout, lengths, 7);
  if (g.family === 'tilt') {
    const parts = unpackShare(g, layout, share, lengths, codeValues(g));
    return { parts, ofHead: (head) => partsOfHead(parts, head) };
  }
  if (g.family === 'scalar') {
    const parts = unpackShare(g, layout, share, lengths, codeValues(g));
    return { parts, ofHead: (head) => partsOfHead(parts, head) };
  }
  if (g.family !== 'low-rank') throw new TypeError(`${scheme.name} has no heads`);
  const unpacked = unpackShare(g, layout, share, lengths, codeValues(g));
  // A group without bits adds nothing, whatever its codes and scales are.
  const parts = unpacked.middle.groupBits
    ? { ...unpacked, middle: { ...unpacked.middle, groupBits: [0, 4] } }
    : unpacked;
  return { parts, ofHead: (head) => partsOfHead(parts, head) };
}

const blocks = defineScheme({
  name: 'blocks',
  keys: [unrope(), perChannel(symmetric({ bits: 4 }), { tokens: 16 })],
  values: [hadamard(), perToken(asymmetric({ bits: 3 }), { channels: 16 })],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 8 }),
});

const sparse = defineScheme({
  name: 'sparse',
  keys: [unrope(), perChannel(nuq({ bits: 3 }), { trim: 0.05 }), outliers({ cap: 2 })],
  values: [perToken(nuq({ bits: 3 }), { trim: 0.05 }), outliers({ cap: 3 })],
  sinks: 4,
  window: 64,
  stream: lloydMax({ bits: 8 }),
});

describe.each([shard, shardPlus, blocks, sparse, turboQuantProd4, tiltFast, tiltSafe])(
  'one head of $name',
  (scheme: Scheme) => {
    const { parts, ofHead } = drawn(scheme);
    const whole = decodeSequence(parts);

    test('has parts that decode to what it is in the whole', () => {
      for (let head = 0; head < parts.kvHeads; head++) {
        const one = decodeSequence(ofHead(head));
        expect(one.keys).toMatchObject({ heads: 1, tokens: 107, channels: 64 });
        expect(one.keys.data).toEqual(headRows(whole.keys, head).data);
        expect(one.values.data).toEqual(headRows(whole.values, head).data);
      }
    });

    test('decodes to the same with factors multiplied once, to rounding', () => {
      const one = decodeHead(parts, 2);
      for (const name of ['keys', 'values'] as const) {
        const expected = headRows(whole[name], 2).data;
        expect(one[name].data).toHaveLength(expected.length);
        expect(worstDifference(one[name].data, expected).by).toBeLessThan(1e-13 * largestOf(expected));
      }
    });
  },
);
