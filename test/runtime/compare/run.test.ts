import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { defaultTargets, generate } from '../../../codegen/generate.js';
import { KvforgeError } from '../../../dsl/errors.js';
import { modelFrom } from '../../../dsl/model.js';
import type { Scheme } from '../../../dsl/scheme.js';
import { int2, int8 } from '../../../dsl/schemes/integer.js';
import { normalFloat4 } from '../../../dsl/schemes/nf4.js';
import { shardPlus } from '../../../dsl/schemes/shardPlus.js';
import type { BenchInput } from '../../../runtime/bench/run.js';
import { KvCache } from '../../../runtime/cache.js';
import { type CompareInput, runCompare } from '../../../runtime/compare/run.js';
import type { Device } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { LoadedKernels } from '../../../runtime/kernels.js';
import { type LayerActivations, loadActivations } from '../../../runtime/report/activations.js';
import { temporaryFolder } from '../../cli/support.js';
import { documentWith } from '../bench/document.js';
import { proxied } from '../cacheCase.js';
import { tinyConfig, tinyLayer, writeActivations } from './activationsFile.js';

const model = modelFrom(tinyConfig, 'tiny');
const noFp16 = new KvforgeError('does-not-fit', { at: 'attendFp16', expected: 'one', received: 'none', hint: '' });
const generateOf = (scheme: Scheme) => () => generate(scheme, model, defaultTargets.cuda);
const compared = (...schemes: readonly Scheme[]) => schemes.map((scheme) => ({ scheme, generate: generateOf(scheme) }));

let device: EmulatorDevice;
let layers: readonly LayerActivations[];
beforeAll(async () => {
  device = await EmulatorDevice.open({ checks: 'none' });
});
afterAll(() => device?.close());

async function inputOf(change: Partial<CompareInput>): Promise<CompareInput> {
  const path = join(temporaryFolder(), 'a.safetensors');
  const activations = await loadActivations(
    writeActivations(path, [...tinyLayer(1, 150, 3), ...tinyLayer(3, 150, 3)]),
    model,
  );
  layers = activations.layers.map((layer) => activations.layer(layer));
  return {
    ...{ device, model, layers, source: activations.description, fp16: noFp16, schemes: compared(int2) },
    ...{ shapes: [{ sequences: 1, tokens: 150 }], samples: 5, seed: 1, budgetMs: 1000 },
    origin: { kvforge: '0.1.0', commit: null, command: 'kvforge compare' },
    progress: () => {},
    ...change,
  };
}

const gpu = { kind: 'cuda', clock: 'device', identity: { name: 'Fake GPU', driver: '1' }, description: '' } as const;

/** Softmax attention written out: [head][query][channel] of the last queries, over numbers of [KV head][token][channel]. */
function outputsOf(keys: ArrayLike<number>, values: ArrayLike<number>, { queries, visible, tokens }: LayerActivations) {
  const outputs: number[] = [];
  for (let head = 0; head < 4; head++) {
    const first = Math.floor(head / 2) * tokens * 32;
    for (let query = 0; query < queries.tokens; query++) {
      const weights = Array.from({ length: visible[query]! }, (_, token) => {
        let dot = 0;
        for (let i = 0; i < 32; i++) {
          dot += queries.data[(head * queries.tokens + query) * 32 + i]! * keys[first + token * 32 + i]!;
        }
        return Math.exp(dot / Math.sqrt(32));
      });
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let i = 0; i < 32; i++) {
        outputs.push(
          weights.reduce((sum, weight, token) => sum + (weight / total) * values[first + token * 32 + i]!, 0),
        );
      }
    }
  }
  return outputs;
}

const halves = (bits: Uint16Array) =>
  Float64Array.from(bits, (half) => {
    const [sign, exponent, rest] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
    return sign * (exponent === 0 ? rest * 2 ** -24 : (1024 + rest) * 2 ** (exponent - 25));
  });

describe('a comparison', () => {
  test('has the error and the bias of what the kernels give back', async () => {
    const { rows } = await runCompare(await inputOf({}));
    const kernels = await LoadedKernels.load(device, await generateOf(int2)());
    const cache = KvCache.open(kernels, { sequences: 1, tokens: 150, generated: 0 });
    const found = [];
    for (const layer of layers) {
      await cache.prefill(0, { keys: layer.keyBits, values: layer.valueBits, tokens: 150 });
      // Read back by another kernel, and rounded to f16.
      const back = await cache.decompress(0);
      const a = outputsOf(layer.exact.keys.data, layer.exact.values.data, layer);
      const b = outputsOf(halves(back.keys), halves(back.values), layer);
      const energy = a.reduce((sum, x) => sum + x * x, 0);
      found.push({
        error: Math.sqrt(a.reduce((sum, x, i) => sum + (b[i]! - x) ** 2, 0) / energy),
        bias: a.reduce((sum, x, i) => sum + (b[i]! - x) * x, 0) / energy,
      });
    }
    await cache.release();
    const [row] = rows;
    expect(row!.layers.map(({ layer, tokens }) => [layer, tokens])).toEqual([
      [1, 150],
      [3, 150],
    ]);
    found.forEach(({ error, bias }, index) => {
      const { attentionError, attentionBias } = row!.layers[index]!;
      expect(error).toBeGreaterThan(0.05);
      expect(Math.abs(attentionError! / error - 1)).toBeLessThan(2e-3);
      expect(Math.abs(attentionBias! - bias)).toBeLessThan(1e-3 * error);
    });
    expect(row!.attentionError).toBeCloseTo(
      (row!.layers[0]!.attentionError! + row!.layers[1]!.attentionError!) / 2,
      14,
    );
    expect(row!.attentionBias).toBeCloseTo((row!.layers[0]!.attentionBias! + row!.layers[1]!.attentionBias!) / 2, 14);
    expect(row!.kernelError).toBe(Math.max(...row!.layers.map(({ kernelError }) => kernelError!)));
    expect(row).toMatchObject({ correct: true, front: true, reason: null, errorBar: 2e-3, times: [] });
  });

  test('goes on without a scheme that does not fit, and says why', async () => {
    const { rows, failed, untimed } = await runCompare(await inputOf({ schemes: compared(normalFloat4, int8) }));
    expect(rows.map(({ scheme }) => scheme)).toEqual(['int8', 'nf4']);
    expect(rows[1]).toMatchObject({
      ...{ bytes: null, bytesPerToken: null, ratio: null, attentionError: null, correct: null, front: false },
      reason: "keys[0].block.channels: expected a number that divides the head dimension 32, or 'head', got 64",
    });
    expect(failed).toEqual([]);
    expect(untimed).toBe('CPU emulator of CUDA runs kernels on a CPU, and its times say nothing of a GPU');
  });

  test('gives queries to a scheme that weighs by them, and says why one without has no figures', async () => {
    const input = await inputOf({ schemes: compared(shardPlus) });
    const [first] = layers;
    const { rows } = await runCompare({ ...input, layers: [first!] });
    expect(rows[0]).toMatchObject({
      correct: true,
      notes: ['judged by queries that its prefill has weighed by: for queries to come its error may be larger'],
    });
    const without = await runCompare({ ...input, layers: [{ ...first!, queryBits: new Uint16Array(0) }] });
    expect(without.rows[0]).toMatchObject({
      ...{ bytes: rows[0]!.bytes, attentionError: null, correct: null, front: false },
      reason:
        "queries: expected queries of the prompt's last positions, as shard-plus weighs by them, got an empty array",
    });
    expect(without.failed).toEqual([]);
  });

  test('counts the bytes of all sequences of the first shape', async () => {
    const one = await runCompare(await inputOf({}));
    const shapes = [
      { sequences: 3, tokens: 150 },
      { sequences: 1, tokens: 600 },
    ];
    const three = await runCompare(await inputOf({ shapes }));
    expect(three.rows[0]!.bytes).toBe(3 * one.rows[0]!.bytes!);
    expect(three.rows[0]!.bytesPerToken).toBe(one.rows[0]!.bytes! / 150);
    // f16 keys and values of 2 heads of 32 channels.
    expect(three.fp16.bytes).toBe(3 * 150 * 2 * 2 * 32 * 2);
    expect(three.rows[0]!.ratio).toBeCloseTo(three.fp16.bytes / three.rows[0]!.bytes!, 14);
  });

  test('fails a scheme whose kernels are off, and leaves it off the front and untimed', async () => {
    const read: Device['read'] = async (buffer, ...range) => {
      const bytes = await device.read(buffer, ...range);
      if (buffer.label !== 'output') return bytes;
      return new Uint8Array(new Float32Array(bytes.slice().buffer).map((x) => x * 1.01).buffer);
    };
    const bench = vi.fn();
    const { rows, failed } = await runCompare(await inputOf({ device: proxied(device, { ...gpu, read }) }), bench);
    expect(failed).toEqual(['int2']);
    expect(rows[0]).toMatchObject({ correct: false, front: false });
    expect(rows[0]!.kernelError).toBeGreaterThan(2e-3);
    expect(bench).not.toHaveBeenCalled();
  });

  test('takes times from a bench of the schemes that are right, where a GPU measures', async () => {
    const found = documentWith({}, 'int2');
    const rowsOf = (scheme: string) => found.rows.map((row) => (row.scheme === 'shard' ? { ...row, scheme } : row));
    const skipped = [{ scheme: 'int2', stage: 'encode' as const, shape: '1x150', reason: 'no room' }];
    const bench = vi.fn(async (_: BenchInput) => ({ ...found, rows: rowsOf('int2'), skipped }));
    const input = await inputOf({ device: proxied(device, gpu), schemes: compared(normalFloat4, int2) });
    const { rows, untimed, fp16 } = await runCompare(input, bench);
    expect(untimed).toBeNull();
    expect(bench.mock.calls[0]![0]).toMatchObject({
      schemes: [{ name: 'int2' }],
      encode: { tokens: 150, torch: undefined },
      ...{ samples: 5, seed: 1, budgetMs: 1000, baseline: 'fp16' },
    });
    const time = { stage: 'attend', shape: '16x8192', spread: 0.1, maxError: 3e-4, errorBar: 2e-3, correct: true };
    expect(rows[0]).toMatchObject({ times: [{ ...time, us: 80 }], notes: ['encode, 1x150: not measured: no room'] });
    expect(fp16.times).toEqual([{ ...time, us: 130 }]);
  });

  test('has the times of a real bench, decode and encode', async () => {
    // As a GPU reached through WebGPU would read less to measure its memory.
    const stand = proxied(device, { ...gpu, kind: 'webgpu' });
    const { rows, fp16, failed } = await runCompare(await inputOf({ device: stand, budgetMs: 60_000 }));
    expect(failed).toEqual([]);
    expect(rows[0]!.times.map(({ stage, shape, correct }) => [stage, shape, correct])).toEqual([
      ['attend', '1x150', true],
      ['encode', '1x150', true],
    ]);
    for (const { us } of rows[0]!.times) expect(us).toBeGreaterThan(0);
    expect(rows[0]!.notes).toEqual([]);
    expect(fp16.times).toEqual([]);
  });

  test('fails a scheme whose timed output was wrong', async () => {
    const found = documentWith();
    const rows = found.rows.map((row) => ({ ...row, scheme: 'int2', correct: false, maxError: null }));
    const bench = async () => ({ ...found, rows: rows.slice(0, 1) });
    const document = await runCompare(await inputOf({ device: proxied(device, gpu) }), bench);
    expect(document.failed).toEqual(['int2']);
    expect(document.rows[0]).toMatchObject({ correct: false, front: false });
  });

  test('refuses two schemes of one name', async () => {
    const fault = await runCompare(await inputOf({ schemes: compared(int2, { ...int2, sinks: 8 }) })).catch(
      (error: Error) => error.message,
    );
    expect(fault).toBe(
      'scheme: expected schemes with names of their own, other than fp16, cudnn and torch, got int2. Name each scheme once, or give it another name.',
    );
  });
});
