import { describe, expect, it } from 'vitest';
import { defaultTargets } from '../../../codegen/generate.js';
import type { KernelDescriptor } from '../../../codegen/manifest.js';
import { geometryOf } from '../../../dsl/geometry.js';
import { presetModel } from '../../../dsl/model.js';
import { shard } from '../../../dsl/schemes/shard.js';
import { fasterBeyond, oneOf } from '../../../dsl/stage.js';
import type { GeometryStage } from '../../../dsl/stages/index.js';
import { defaultSplits } from '../../../runtime/attendLaunches.js';
import { promptLengths } from '../../../runtime/cache/lengths.js';
import { nearestShape, tunedSplits } from '../../../runtime/tune/nearest.js';
import { predictMicroseconds } from '../../../runtime/tune/predict.js';
import { parseShape, shapeText } from '../../../runtime/tune/shapeClass.js';
import { searchSpace } from '../../../runtime/tune/space.js';
import { splitChoices } from '../../../runtime/tune/splitChoices.js';
import { measuredFrom, rankCorrelation, withinNoise } from '../../../runtime/tune/statistics.js';
import { seenOf, visibleLengths } from '../../../runtime/tune/visible.js';

const geometry = geometryOf(shard, presetModel('llama-3.1-8b'));

describe('shapes', () => {
  it('are read as they are written', () => {
    expect(parseShape('16x8192')).toEqual({ sequences: 16, tokens: 8192 });
    expect(shapeText({ sequences: 16, tokens: 8192 })).toBe('16x8192');
  });

  it.each(['', '8192', '0x8192', '16x', '16x0', '-1x8', '1e3x8', '16 x 8', '70000x8', '1x16777217', '1x8192x'])(
    'are refused: %j',
    (text) => {
      expect(() => parseShape(text, '--shapes')).toThrow(
        `--shapes: expected sequences x tokens, such as 16x8192 (at most 65535 sequences of 16777216 tokens), got ${JSON.stringify(text)}. Write both numbers in decimal digits with an x between them.`,
      );
    },
  );

  const at = (...texts: readonly string[]) => texts.map((text) => parseShape(text));
  it.each([
    ['1x8192', '1x8192'],
    ['3x8192', '1x8192'],
    ['5x8192', '16x8192'],
    // Two doublings either way: the one with fewer sequences.
    ['4x8192', '1x8192'],
    // As far from 1x8192 as from 1x32768: the one with fewer tokens.
    ['1x16384', '1x8192'],
    ['1x17000', '1x32768'],
    ['1000x1', '16x8192'],
  ])('near %s are those of %s', (wanted, found) => {
    const classes = at('16x8192', '1x32768', '1x8192');
    expect(shapeText(nearestShape(classes, parseShape(wanted))!)).toBe(found);
  });

  it('are none of none', () => expect(nearestShape([], parseShape('1x1'))).toBeUndefined());

  it('have the splits of a class within two doublings, and of none beyond', () => {
    const tuned = [{ sequences: 1, tokens: 8192, splits: 33 }];
    expect(tunedSplits(tuned, parseShape('2x16384'))).toBe(33);
    expect(tunedSplits(tuned, parseShape('1x2048'))).toBe(33);
    expect(tunedSplits(tuned, parseShape('1x2047'))).toBeUndefined();
    expect(tunedSplits(tuned, parseShape('8x8192'))).toBeUndefined();
    expect(tunedSplits([], parseShape('1x1'))).toBeUndefined();
  });
});

describe('what a query of the last token sees', () => {
  const lengths = { ...promptLengths(geometry, 1000), streamTokens: 0 };
  it.each([
    [1000, [4, 932, 64]],
    [998, [2, 932, 64]],
    [100, [0, 36, 64]],
    [10, [0, 0, 10]],
  ])('of 1000 tokens, with a window of %i', (seen, expected) => {
    const { sinkTokens, middleTokens, windowTokens } = visibleLengths(lengths, seen);
    expect([sinkTokens, middleTokens, windowTokens]).toEqual(expected);
  });

  it('is what layer 0 lets it see', () => {
    const shape = parseShape('2x8192');
    expect(seenOf(presetModel('llama-3.1-8b'), shape)).toEqual(shape);
    expect(seenOf(presetModel('gemma-2-9b'), shape)).toEqual({ sequences: 2, tokens: 4096 });
    expect(seenOf(presetModel('gemma-2-9b'), parseShape('2x100'))).toEqual({ sequences: 2, tokens: 100 });
  });
});

describe('splits worth trying', () => {
  it('are the default first, then powers of two and whole waves', () => {
    const shape = parseShape('1x8192');
    const choices = splitChoices(geometry, shape, 132);
    expect(choices[0]).toBe(defaultSplits(geometry, 1, 8192, 132));
    // 132 multiprocessors over 8 KV heads, once to four times.
    for (const splits of [1, 2, 4, 8, 64, 16, 33, 49, 66]) expect(choices).toContain(splits);
    expect(new Set(choices).size).toBe(choices.length);
  });

  it('give every block 64 tokens or more', () => {
    expect(Math.max(...splitChoices(geometry, parseShape('1x200'), 132))).toBe(4);
    expect(splitChoices(geometry, parseShape('1x1'))).toEqual([1]);
  });
});

describe('a search space', () => {
  const stage: GeometryStage = {
    name: 'attend',
    summary: '',
    tunables: () => ({ warps: oneOf(4, 8), tile: oneOf(16, 32) }),
    constraints: [(_g, { warps, tile }) => (warps! * tile! > 128 ? `${warps! * tile!} rows, 128 at most` : undefined)],
    kernels: () => [],
  };

  it('has every combination that can be, the defaults first, and the reasons against the others', () => {
    const { candidates, pruned } = searchSpace(stage, geometry, defaultTargets.cuda, {
      splits: [2, 1],
      tradeAccuracy: false,
    });
    expect(candidates.map(({ index, tunables, splits }) => [index, tunables.warps, tunables.tile, splits])).toEqual([
      [0, 4, 16, 2],
      [1, 4, 16, 1],
      [2, 4, 32, 2],
      [3, 4, 32, 1],
      [4, 8, 16, 2],
      [5, 8, 16, 1],
    ]);
    expect(pruned).toEqual([{ tunables: { warps: 8, tile: 32 }, reason: '256 rows, 128 at most' }]);
  });

  it('leaves out what trades accuracy for time, with the reason, unless it is asked for', () => {
    const trading: GeometryStage = {
      ...stage,
      tunables: () => ({ warps: oneOf(4, 8), halves: fasterBeyond(2, 1) }),
      constraints: [],
    };
    const values = (tradeAccuracy: boolean) => {
      const { candidates, pruned } = searchSpace(trading, geometry, defaultTargets.cuda, { tradeAccuracy });
      return [candidates.map(({ tunables }) => tunables.halves), pruned];
    };
    const reason = 'halves 1 trades accuracy for time (--trade-accuracy tries it)';
    const left = [4, 8].map((warps) => ({ tunables: { warps, halves: 1 }, reason }));
    expect(values(false)).toEqual([[2, 2], left]);
    expect(values(true)).toEqual([[2, 1, 2, 1], []]);
  });

  it('has what kernels are without tuning, even where the most accurate values have no room', () => {
    const tight: GeometryStage = {
      ...stage,
      tunables: () => ({ halves: fasterBeyond(4, 2, 1), warps: oneOf(4, 8) }),
      constraints: [(_g, { halves }) => (halves === 4 ? 'no room for 4 halves' : undefined)],
    };
    const { candidates, pruned } = searchSpace(tight, geometry, defaultTargets.cuda, { tradeAccuracy: false });
    expect(candidates.map(({ tunables }) => tunables)).toEqual([
      { halves: 2, warps: 4 },
      { halves: 2, warps: 8 },
    ]);
    expect(pruned.map(({ reason }) => reason)).toEqual([
      'no room for 4 halves',
      'no room for 4 halves',
      'halves 1 trades accuracy for time (--trade-accuracy tries it)',
      'halves 1 trades accuracy for time (--trade-accuracy tries it)',
    ]);
  });

  it('without a configuration that can be has the reasons alone', () => {
    const none: GeometryStage = { ...stage, constraints: [() => 'no room'] };
    const { candidates, pruned } = searchSpace(none, geometry, defaultTargets.cuda, { tradeAccuracy: false });
    expect(candidates).toEqual([]);
    expect(new Set(pruned.map(({ reason }) => reason))).toEqual(new Set(['no room']));
  });
});

describe('a prediction', () => {
  const kernel = (parts: Partial<KernelDescriptor>) =>
    ({
      threads: 128,
      grid: [{ dimension: 'workItems' }, 1, 1],
      sharedBytes: { fixed: 0, dynamic: 0 },
      ...parts,
    }) as KernelDescriptor;
  const work = { bytes: 3e6, operations: 0 };
  const device = { multiprocessors: 100, sharedBytes: 100_000 };
  const predict = (workItems: number, parts: Partial<KernelDescriptor> = {}) =>
    predictMicroseconds([kernel(parts)], { workItems }, work, device);

  it('is the launch, and the bytes at full bandwidth where blocks fill the device', () => {
    // 3 MB over 100 multiprocessors of 30 000 bytes a microsecond: 1; four blocks of four warps hide latency.
    expect(predict(400)).toBeCloseTo(2 + 1, 6);
  });

  it('is longer with idle multiprocessors, with a wave that is nearly empty, and with too few warps', () => {
    expect(predict(50)).toBeGreaterThan(predict(100));
    const full = { sharedBytes: { fixed: 0, dynamic: 100_000 }, threads: 512 };
    expect(predict(101, full)).toBeGreaterThan(predict(100, full));
    expect(predict(100, { threads: 64 })).toBeGreaterThan(predict(100, { threads: 512 }));
  });

  it('counts the time to fill shared memory, once a wave', () => {
    const shared = { threads: 512, sharedBytes: { fixed: 0, dynamic: 90_000 } };
    // One block a multiprocessor: 90 000 bytes at 30 000 a microsecond.
    expect(predict(100, shared) - predict(100, { threads: 512 })).toBeCloseTo(3, 6);
  });

  it('is nothing for kernels that launch nothing', () => expect(predict(0)).toBe(0));
});

describe('statistics', () => {
  it('are the median and the median absolute deviation', () => {
    expect(measuredFrom([5, 1, 100, 3, 4])).toEqual({ microseconds: 4, spread: 1 });
    expect(measuredFrom([1, 2])).toEqual({ microseconds: 1.5, spread: 0.5 });
  });

  it('tell medians apart that are further from each other than their samples', () => {
    expect(withinNoise({ microseconds: 50, spread: 1 }, { microseconds: 52.9, spread: 1 })).toBe(true);
    expect(withinNoise({ microseconds: 50, spread: 1 }, { microseconds: 53, spread: 1 })).toBe(false);
  });

  it('tell medians apart that are further from each other than a tenth of the faster, however the samples scatter', () => {
    const scattered = (microseconds: number) => ({ microseconds, spread: 30 });
    expect(withinNoise(scattered(100), scattered(110))).toBe(true);
    expect(withinNoise(scattered(100), scattered(111))).toBe(false);
    expect(withinNoise(scattered(111), scattered(100))).toBe(false);
  });

  it('correlate ranks', () => {
    expect(rankCorrelation([1, 2, 3, 4], [10, 20, 30, 1000])).toBeCloseTo(1, 12);
    expect(rankCorrelation([1, 2, 3, 4], [4, 3, 2, 1])).toBeCloseTo(-1, 12);
    // Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    expect(rankCorrelation([1, 2, 2, 3], [1, 2, 3, 4])).toBeCloseTo(4.5 / Math.sqrt(4.5 * 5), 12);
    expect(rankCorrelation([1, 1], [1, 2])).toBeUndefined();
    expect(rankCorrelation([1], [1])).toBeUndefined();
  });
});
