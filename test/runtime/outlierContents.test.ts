import { describe, expect, test } from 'vitest';
import { layoutSequence } from '../../codegen/plan/layout.js';
import { geometryOf, type KvforgeError } from '../../dsl/index.js';
import { checkContents } from '../../runtime/cache/checkContents.js';
import { readContents } from '../../runtime/cache/contents.js';
import { syntheticShare } from '../../runtime/tune/syntheticCache.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { outlierCases } from '../stages/outlierCases.js';

const { scheme, model } = outlierCases[0]!;
const g = geometryOf(scheme, model);
const tokens = 50;
const layout = layoutSequence(g, { tokens, generated: 0 });
const lengths = {
  sinkTokens: scheme.sinks,
  middleTokens: tokens - scheme.sinks - scheme.window,
  streamTokens: 0,
  windowTokens: scheme.window,
  windowStart: 0,
  promptTokens: tokens,
};

/** What the contents of a share are refused with, after a word of its outliers of keys was replaced. */
function refusal(word: number, instead: number): string {
  const share = syntheticShare(g, layout, lengths, 1);
  const { offset } = layout.parts.find(({ name }) => name === 'keyOutliers')!;
  new DataView(share.buffer).setUint32(offset + word * 4, instead, true);
  try {
    checkContents(g, readContents(layout, share, lengths), { prefix: 'share, ', hint: 'Save it again.' });
  } catch (error) {
    return (error as KvforgeError).message;
  }
  return 'accepted';
}

describe('outliers of a share that is put into a cache', () => {
  test('are accepted, whatever there are of channels and of numbers', () => {
    expect(refusal(0, 0)).toBe('accepted');
    expect(refusal(3, 63 + halfBits([-65504])[0]! * 0x10000)).toBe('accepted');
  });

  test('are refused for a channel past the head, or a residual that would spread', () => {
    expect(refusal(3, 64)).toBe('share, keyOutliers[3]: expected a channel below 64, got 64. Save it again.');
    for (const residual of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      expect(refusal(5, halfBits([residual])[0]! * 0x10000)).toBe(
        'share, keyOutliers[5]: expected a finite f16 residual, got one that is not. Save it again.',
      );
    }
  });
});
