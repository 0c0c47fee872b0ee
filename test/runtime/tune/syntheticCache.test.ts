import { describe, expect, it } from 'vitest';
import { layoutSequence } from '../../../codegen/plan/layout.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import { tiltFast, tiltSafe } from '../../../dsl/schemes/tilt.js';
import { checkContents } from '../../../runtime/cache/checkContents.js';
import { readContents } from '../../../runtime/cache/contents.js';
import { promptLengths } from '../../../runtime/cache/lengths.js';
import { decodeSequence } from '../../../runtime/reference/index.js';
import { unpackShare } from '../../../runtime/reference/unpackShare.js';
import { syntheticShare } from '../../../runtime/tune/syntheticCache.js';
import { codeValues } from '../../../runtime/verify/codeValues.js';

const rootMeanSquare = (data: Float64Array) => Math.sqrt(data.reduce((sum, x) => sum + x * x, 0) / data.length);

describe('a synthetic share', () => {
  for (const scheme of [shard, shardPlus, tiltFast, tiltSafe] as const) {
    const g = geometryOf(scheme, presetModel('smollm2-135m'));
    const layout = layoutSequence(g, { tokens: 300, generated: 40 });
    const lengths = { ...promptLengths(g, 300), streamTokens: 40 };

    it(`of ${scheme.name} holds what a cache takes`, () => {
      const contents = readContents(layout, syntheticShare(g, layout, lengths, 1), lengths);
      checkContents(g, contents, { prefix: '', hint: '' });
      expect([...contents.parts.keys()]).toEqual(layout.parts.map(({ name }) => name));
    });

    it(`of ${scheme.name} stands for keys and values of ordinary size`, () => {
      const share = syntheticShare(g, layout, lengths, 1);
      const parts = unpackShare(g, layout, share, lengths, codeValues(g));
      const { keys, values } = decodeSequence({ ...parts, rope: g.model.rope });
      for (const { data } of [keys, values]) {
        expect(data.every(Number.isFinite)).toBe(true);
        expect(rootMeanSquare(data)).toBeGreaterThan(0.5);
        expect(rootMeanSquare(data)).toBeLessThan(3);
      }
    });
  }

  const g = geometryOf(shard, presetModel('smollm2-135m'));
  const layout = layoutSequence(g, { tokens: 300, generated: 40 });

  it('depends on its seed alone', () => {
    const lengths = promptLengths(g, 300);
    expect(syntheticShare(g, layout, lengths, 7)).toEqual(syntheticShare(g, layout, lengths, 7));
    expect(syntheticShare(g, layout, lengths, 7)).not.toEqual(syntheticShare(g, layout, lengths, 8));
  });

  it('leaves rows that are not in use as they are', () => {
    const share = syntheticShare(g, layout, promptLengths(g, 70), 1);
    const codes = layout.parts.find(({ name }) => name === 'keyCodes')!;
    const rowBytes = codes.wordsPerRow * 4;
    const used = 70 - 4 - 64;
    const part = share.subarray(codes.offset, codes.offset + codes.bytes);
    expect(part.subarray(0, used * rowBytes).some((byte) => byte !== 0)).toBe(true);
    expect(part.subarray(used * rowBytes).every((byte) => byte === 0)).toBe(true);
  });
});
