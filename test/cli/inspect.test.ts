import { describe, expect, test } from 'vitest';
import { geometryOf } from '../../dsl/geometry.js';
import { presetModel } from '../../dsl/model.js';
import { shard } from '../../dsl/schemes/shard.js';
import { KvCache } from '../../runtime/cache.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { cli, documentOf, errorOf } from './support.js';

interface Plan {
  readonly ratio: number;
  readonly bytesPerToken: number;
  readonly totalBytes: number;
  readonly fp16Bytes: number;
  readonly buffers: readonly { readonly name: string; readonly bytes: number; readonly offset: number | null }[];
}

async function plan(...args: readonly string[]): Promise<Plan> {
  const run = await cli('inspect', 'shard', ...args, '--json');
  expect(run.code).toBe(0);
  return documentOf(run) as unknown as Plan;
}

describe('the byte plan', () => {
  test.each([
    ['8192', '10.04'],
    ['32768', '11.19'],
  ])('of Llama 3.1 8B at %s tokens is %s times smaller than fp16', async (tokens, ratio) => {
    expect((await plan('--model', 'llama-3.1-8b', '--tokens', tokens)).ratio.toFixed(2)).toBe(ratio);
  });

  test.each([
    ['smollm2-135m', 2048, 0],
    ['llama-3.1-8b', 1, 0],
    ['qwen2.5-7b', 1000, 77],
  ])('of %s at %d + %d tokens is what a cache allocates', async (model, tokens, generated) => {
    const { totalBytes, fp16Bytes, bytesPerToken, ratio, buffers } = await plan(
      '--model',
      model,
      '--tokens',
      `${tokens}`,
      '--generated',
      `${generated}`,
    );
    const geometry = geometryOf(shard, presetModel(model));
    const allocated: Record<string, number> = {};
    const device = {
      allocate: (label: string, bytes: number) => {
        allocated[label] = bytes;
        return { label, bytes, release: () => {} };
      },
      write: () => {},
      limits: { bytesPerBinding: Number.POSITIVE_INFINITY },
    };
    const cache = KvCache.open({ device, geometry } as unknown as LoadedKernels, { sequences: 1, tokens, generated });
    expect(totalBytes).toBe(cache.bytes);
    expect(totalBytes).toBe(allocated.cache! + allocated.sequences!);
    expect(buffers.reduce((sum, { bytes }) => sum + bytes, 0)).toBe(totalBytes);
    expect(fp16Bytes).toBe((tokens + generated) * geometry.width * 4);
    expect(ratio).toBe(fp16Bytes / totalBytes);
    expect(bytesPerToken).toBe(totalBytes / (tokens + generated));
  });

  test('names every part, the padding and the record', async () => {
    const { buffers } = await plan('--model', 'smollm2-135m', '--tokens', '2048');
    expect(buffers.map(({ name }) => name)).toEqual([
      'sinkKeys',
      'sinkValues',
      'windowKeys',
      'windowValues',
      'keyCodes',
      'keyScales',
      'keyBasis',
      'keyBasisScales',
      'keyMean',
      'valueCodes',
      'codebook',
      'channelMax',
      'streamKeyCodes',
      'streamKeyNorms',
      'streamValueCodes',
      'streamValueNorms',
      'padding',
      'record',
    ]);
    expect(buffers.at(-1)).toMatchObject({ bytes: 256, offset: 0, buffer: 'sequences' });
  });

  test('for people is a table without colours', async () => {
    const { out } = await cli('inspect', 'shard', '--model', 'llama-3.1-8b', '--tokens', '8192');
    expect(out).toContain('3,342,080 bytes, 408.0 a token; fp16 33,554,432; 10.04 times smaller\n');
    expect(out).toMatch(/^keyCodes +4-bit fields \[middle\]\[192 components\] +8,124 +779,904 +23\.3% +278,528$/m);
    expect(out).not.toContain('\u001b[');
  });

  test('of a short prompt says how much larger it is than fp16', async () => {
    const { out } = await cli('inspect', 'shard', '--model', 'smollm2-135m', '--tokens', '1');
    // 61,696 / 768 = 80.333.
    expect(out).toContain('61,696 bytes, 61696.0 a token; fp16 768; 80.33 times larger\n');
  });

  test('notes more tokens than the model has positions', async () => {
    const run = await cli(
      'inspect',
      'shard',
      '--model',
      'smollm2-135m',
      '--tokens',
      '8192',
      '--generated',
      '1',
      '--json',
    );
    expect(run.err).toBe('note: smollm2-135m has 8192 positions, fewer than 8193\n');
    expect(run.code).toBe(0);
  });
});

describe('tokens', () => {
  test.each(['0', '-1', '1.5', '1e3', '', ' 8', '16777217', '99999999999999999999', 'many'])(
    '%j are refused',
    async (tokens) => {
      const run = await cli('inspect', 'shard', '--model', 'smollm2-135m', `--tokens=${tokens}`, '--json');
      expect(run.code).toBe(2);
      expect(errorOf(run)).toEqual({
        code: 'wrong-use',
        message: `--tokens: expected a whole number from 1 to 16777216, got ${JSON.stringify(tokens)}`,
        hint: 'Write it in decimal digits.',
      });
    },
  );
});
