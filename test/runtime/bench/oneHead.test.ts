import { describe, expect, test } from 'vitest';
import { layoutSequence } from '../../../codegen/plan/layout.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import { decodeHead } from '../../../runtime/bench/decodeHead.js';
import { partsOfHead } from '../../../runtime/bench/oneHead.js';
import { decodeShard, headRows } from '../../../runtime/reference/index.js';
import type { ShardParts } from '../../../runtime/reference/shard.js';
import { unpackShare } from '../../../runtime/reference/unpackShare.js';
import { syntheticShare } from '../../../runtime/tune/syntheticCache.js';
import { largestOf, worstDifference } from '../../../runtime/verify/draws.js';
import { streamValues } from '../../../runtime/verify/streamValues.js';

const lengths = {
  ...{ sinkTokens: 4, middleTokens: 32, streamTokens: 7, windowTokens: 64, windowStart: 5, promptTokens: 100 },
};

function drawn(scheme: typeof shard | typeof shardPlus): ShardParts {
  const g = geometryOf(scheme, presetModel('smollm2-135m'));
  const layout = layoutSequence(g, { tokens: 100, generated: 8 });
  const parts = unpackShare(g, layout, syntheticShare(g, layout, lengths, 7), lengths, streamValues(g));
  // A group without bits adds nothing, whatever its codes and scales are.
  return parts.middle.groupBits ? { ...parts, middle: { ...parts.middle, groupBits: [0, 4] } } : parts;
}

describe.each([shard, shardPlus])('one head of $name', (scheme) => {
  const parts = drawn(scheme);
  const whole = decodeShard(parts);

  test('has parts that decode to what it is in the whole', () => {
    for (let head = 0; head < parts.kvHeads; head++) {
      const one = decodeShard(partsOfHead(parts, head));
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
});
