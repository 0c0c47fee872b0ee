import { describe, expect, test } from 'vitest';
import { presetModel } from '../../../dsl/model.js';
import { reasonAgainstBaseline } from '../../../runtime/bench/known.js';
import { type Measured, rowsOf } from '../../../runtime/bench/rows.js';

const timing = (us: number) => ({ us, spread: 0.1, p10: us, p90: us, samples: 25 });
const ceilings = { bytesPerSecond: 4e12, operations: 1e15 };

function measured(scheme: string, us: number, more: Partial<Measured> = {}): Measured {
  return {
    scheme,
    stage: 'attend',
    shape: { sequences: 16, tokens: 8192 },
    splits: 4,
    sweep: [{ splits: 4, us }],
    copies: 5,
    cold: true,
    timing: timing(us),
    bytes: 54_000_000,
    bytesRead: 50_000_000,
    operations: 60_000_000_000,
    checked: { maxError: 3e-4, bar: 2e-3, what: 'some outputs' },
    ...more,
  };
}

describe('rows', () => {
  test('have rates, shares of both ceilings, and ratios to what ran beside', () => {
    const rows = rowsOf([measured('shard', 100), measured('fp16', 130), measured('cudnn', 125)], ceilings, 'cudnn');
    // 50 MB in 100 us are 500 GB/s, an eighth of 4 TB/s; 60 GFLOP in 100 us are 600 TFLOP/s.
    expect(rows[0]).toMatchObject({
      shape: '16x8192',
      gbps: 500,
      intensity: 1200,
      byteShare: expect.closeTo(0.125, 12),
      operationShare: 0.6,
      roofline: 0.6,
      correct: true,
      baselineUs: 125,
      ratio: 1.25,
      ratioFp16: 1.3,
      ratioCudnn: 1.25,
      notes: [],
    });
    expect(rows[2]).toMatchObject({ scheme: 'cudnn', ratio: 1, ratioFp16: 1.04 });
  });

  test('have no ratio to a baseline that is too slow, or is not there', () => {
    const slow = measured('cudnn', 150, { noBaseline: 'no baseline: slow' });
    const [row, own, cudnn] = rowsOf([measured('shard', 100), measured('fp16', 130), slow], ceilings, 'cudnn');
    expect(row).toMatchObject({ baselineUs: null, ratio: null, ratioCudnn: null, ratioFp16: 1.3 });
    expect(own).toMatchObject({ ratioCudnn: null });
    expect(cudnn).toMatchObject({ ratioCudnn: null, notes: ['no baseline: slow'] });
    expect(rowsOf([measured('shard', 100)], ceilings, 'fp16')[0]).toMatchObject({ ratio: null, baselineUs: null });
  });

  test.each([
    [0.01, 0.01, 'wrong: error 1.0e-2, at most 2e-3 is right'],
    [Number.NaN, null, 'wrong: error no number, at most 2e-3 is right'],
    [Number.POSITIVE_INFINITY, null, 'wrong: error no number, at most 2e-3 is right'],
  ])('that are wrong by %s have no ratio, nor has anything to them', (maxError, shown, note) => {
    const wrong = { checked: { maxError, bar: 2e-3, what: 'some outputs' } };
    const [scheme] = rowsOf([measured('shard', 100, wrong), measured('fp16', 130)], ceilings, 'fp16');
    expect(scheme).toMatchObject({ correct: false, maxError: shown, ratio: null, ratioFp16: null, notes: [note] });
    const [other] = rowsOf([measured('shard', 100), measured('fp16', 130, wrong)], ceilings, 'fp16');
    expect(other).toMatchObject({ correct: true, ratio: null, ratioFp16: null, baselineUs: null });
  });

  test('have no ratio between inputs from memory and inputs from a cache', () => {
    const warm = { cold: false };
    const all = [measured('shard', 100, warm), measured('fp16', 130, warm), measured('cudnn', 125)];
    const [row, own, cudnn] = rowsOf(all, ceilings, 'cudnn');
    const note = (name: string, own: string, other: string) =>
      `no ratio to ${name}: these inputs came from ${own}, those from ${other}`;
    expect(row).toMatchObject({ cold: false, baselineUs: null, ratio: null, ratioCudnn: null, ratioFp16: 1.3 });
    expect(row!.notes).toEqual([note('cudnn', 'a cache', 'memory')]);
    expect(own).toMatchObject({ ratioCudnn: null, ratioFp16: 1 });
    expect(cudnn).toMatchObject({ cold: true, ratioFp16: null, notes: [note('fp16', 'memory', 'a cache')] });
  });

  test('leave out shares of what is not known', () => {
    const unknown = rowsOf([measured('shard', 100)], { bytesPerSecond: 4e12 }, 'fp16')[0];
    expect(unknown).toMatchObject({ operationShare: null, roofline: expect.closeTo(0.125, 12) });
  });
});

describe('a known baseline', () => {
  const llama = presetModel('llama-3.1-8b');
  const shape = { sequences: 1, tokens: 8192 };

  test('may take a tenth longer', () => {
    expect(reasonAgainstBaseline('NVIDIA H200', llama, shape, 16.8)).toBeUndefined();
    expect(reasonAgainstBaseline('NVIDIA H200', llama, shape, 16.9)).toBe(
      'no baseline: cuDNN took 16.9 us here, and is known to take 15.3 us on an NVIDIA H200',
    );
  });

  test.each([
    ['another device', 'NVIDIA L4', llama, shape],
    ['another model', 'NVIDIA H200', presetModel('qwen2.5-7b'), shape],
    ['another shape', 'NVIDIA H200', llama, { sequences: 2, tokens: 8192 }],
  ])('is not known of %s', (_, device, model, other) => {
    expect(reasonAgainstBaseline(device, model, other, 1e6)).toBeUndefined();
  });
});
