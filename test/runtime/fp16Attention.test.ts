import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defaultTargets } from '../../codegen/generate.js';
import { type Fp16Kernels, generateFp16 } from '../../codegen/generateFp16.js';
import type { HeadGeometry } from '../../dsl/headGeometry.js';
import { presetModel } from '../../dsl/model.js';
import { KvCache } from '../../runtime/cache.js';
import type { Device, DeviceBuffer } from '../../runtime/device.js';
import { Fp16Attention, fp16Splits } from '../../runtime/fp16Attention.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { normalFrom, seededRandom, toHalf } from '../../runtime/reference/index.js';
import { halfBits, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { deviceNames, makeCase, openDevice, targetOf } from '../stages/harness.js';

const { model: plain } = makeCase({ heads: 6, kvHeads: 2, headDim: 32, rank: 16, bits: 4, group: 16 });
/** Its second layer sees 20 tokens. */
const model = {
  ...plain,
  layers: 2,
  kinds: [{ rope: plain.rope }, { rope: plain.rope, slidingWindow: 20 }],
  layerKinds: [0, 1],
};

function normal(length: number, seed: number): Float64Array {
  const random = seededRandom(seed);
  return Float64Array.from({ length }, () => toHalf(normalFrom(random)));
}

async function message(work: () => unknown): Promise<string> {
  try {
    await work();
  } catch (error) {
    return (error as Error).message;
  }
  return 'nothing';
}

describe.each(deviceNames)('uncompressed attention on %s', (deviceName) => {
  const bar = deviceName === 'emulator' ? 2e-3 : 1e-5;
  let device: Device;
  let generated: Fp16Kernels;
  let kernels: LoadedKernels<HeadGeometry>;
  beforeAll(async () => {
    device = await openDevice(deviceName);
    generated = await generateFp16(model, targetOf(device, { tensorCores: true }));
    kernels = await LoadedKernels.load(device, generated);
  });
  afterAll(() => device?.close());

  const tokens = 45;
  const length = model.kvHeads * tokens * model.headDim;
  const [keys, values] = [normal(length, 1), normal(length, 2)];
  const bits = { keys: halfBits(keys), values: halfBits(values), tokens };

  test.each([
    ['all tokens', 0, 0, undefined],
    ['the window of its layer', 1, 20, 3],
  ] as const)('sees %s', async (_, layer, slidingWindow, splits) => {
    const attention = Fp16Attention.open(kernels, { sequences: 2, tokens: 50, layer });
    try {
      attention.write(1, bits);
      const query = normal(2 * 2 * model.heads * model.headDim, 3);
      const output = await attention.attend(halfBits(query), { queries: 2, ...(splits ? { splits } : {}) });
      const half = query.length / 2;
      expect([...output.subarray(0, half)].every((x) => x === 0)).toBe(true);
      const tensor = (data: Float64Array) => ({ heads: model.kvHeads, tokens, channels: model.headDim, data });
      const held = { keys: tensor(keys), values: tensor(values) };
      const expected = new Float64Array(half);
      for (let row = 0; row < 2 * model.heads; row++) {
        const [after, head] = [1 - Math.floor(row / model.heads), row % model.heads];
        const at = row * model.headDim;
        const own = query.subarray(half + at, half + at + model.headDim);
        const kvHead = Math.floor(head / model.groupSize);
        expected.set(attendVisible({ model }, held, { query: own, kvHead, after, slidingWindow }), at);
      }
      expect(worstError(output.subarray(half), expected, half).by).toBeLessThanOrEqual(bar);
    } finally {
      attention.release();
    }
  });

  test('holds what was written last', async () => {
    const attention = Fp16Attention.open(kernels, { sequences: 1, tokens: 45 });
    const query = halfBits(normal(model.heads * model.headDim, 4));
    attention.write(0, bits);
    const before = await attention.attend(query);
    attention.write(0, { keys: new Uint16Array(0), values: new Uint16Array(0), tokens: 0 });
    expect([...(await attention.attend(query))].every((x) => x === 0)).toBe(true);
    attention.write(0, bits);
    expect(await attention.attend(query)).toEqual(before);
    expect(attention.bytes).toBe(2 * 45 * model.width * 2 + 12);
    attention.release();
  });

  test('keeps the capacity that it was opened with', async () => {
    const capacity = { sequences: 2, tokens: 45 };
    const attention = Fp16Attention.open(kernels, capacity);
    Object.assign(capacity, { sequences: 9, tokens: 9 });
    attention.write(1, bits);
    const query = halfBits(normal(2 * model.heads * model.headDim, 6));
    const output = await attention.attend(query);
    const alone = Fp16Attention.open(kernels, { sequences: 1, tokens: 45 });
    alone.write(0, bits);
    expect(output.subarray(output.length / 2)).toEqual(await alone.attend(query.subarray(query.length / 2)));
    attention.release();
    alone.release();
  });

  test('gives launches that may run again and again', async () => {
    const attention = Fp16Attention.open(kernels, { sequences: 1, tokens: 45 });
    attention.write(0, bits);
    const query = halfBits(normal(model.heads * model.headDim, 5));
    const owned: DeviceBuffer[] = [];
    const { launches, output } = attention.launches(query, { splits: 2 }, owned);
    await device.run(launches);
    const first = (await device.read(output)).slice();
    await device.run(launches);
    expect(await device.read(output)).toEqual(first);
    for (const buffer of owned) buffer.release();
    attention.release();
  });

  test('refuses what it cannot take', async () => {
    const open = (capacity: object) => () => Fp16Attention.open(kernels, capacity as never);
    const unloaded = () => Fp16Attention.open(generated as never, { sequences: 1, tokens: 1 });
    expect(await message(unloaded)).toBe(
      'kernels: expected kernels that LoadedKernels.load gave, got generated ones, which no device has loaded. Load them first: await LoadedKernels.load(device, kernels).',
    );
    expect(await message(open({ sequences: 0, tokens: 1 }))).toBe(
      'sequences: expected a whole number from 1 to 65535, got 0. Open one for the whole batch.',
    );
    expect(await message(open({ sequences: 1, tokens: 4097 }))).toBe(
      'tokens: expected a whole number from 1 to 4096 (the positions of 6-2-32-r16), got 4097. Give those of one sequence.',
    );
    expect(await message(open({ sequences: 1, tokens: 1, layer: 2 }))).toBe(
      'layer: expected a whole number from 0 to 1, got 2. 6-2-32-r16 has 2 layers.',
    );
    const room = Math.min(device.limits.bytesPerBinding, 2 ** 34 - 4);
    expect(await message(open({ sequences: 65535, tokens: 4096 }))).toBe(
      `keys: expected at most ${room} bytes (what a kernel of this device binds), got ${65535 * 4096 * 128}. Hold fewer sequences or tokens.`,
    );

    const attention = Fp16Attention.open(kernels, { sequences: 1, tokens: 45 });
    const query = new Uint16Array(model.heads * model.headDim);
    expect(await message(() => attention.write(1, bits))).toBe(
      'sequence: expected a whole number from 0 to 0, got 1. Name a sequence of the capacity.',
    );
    expect(await message(() => attention.write(0, { ...bits, tokens: 46 }))).toBe(
      'tokens: expected a whole number from 0 to 45, got 46. Open it for more tokens.',
    );
    expect(await message(() => attention.write(0, { ...bits, tokens: 44 }))).toBe(
      'keys: expected 2816 f16 numbers (2 KV heads x 44 tokens x 32 channels) as a Uint16Array, got 2880. Pass the bits of the f16 tensor, innermost dimension last.',
    );
    const broken = { ...bits, values: bits.values.slice().fill(0x7e00, 33, 34) };
    expect(await message(() => attention.write(0, broken))).toBe(
      'values, KV head 0, token 1, channel 1: expected a finite f16 number, got NaN. Find where the model overflows; nothing was written to the cache.',
    );
    expect(await message(() => attention.attend(query, { splits: 0 }))).toBe(
      'splits: expected a whole number from 1 to 1024, got 0. Leave it out for the default.',
    );
    expect(await message(() => attention.attend(query.subarray(1)))).toBe(
      'query: expected 192 f16 numbers (1 sequences x 1 query tokens x 6 heads x 32 channels) as a Uint16Array, got 191. Pass the bits of the f16 tensor, innermost dimension last.',
    );
    expect(await message(() => attention.attend(query, null as never))).toBe(
      'options: expected { queries, splits }, both optional, got null. Pass it as the types say.',
    );
    expect(await message(() => attention.launches(query, {}, undefined as never))).toBe(
      'owned: expected a list that takes the buffers, got undefined. Pass it as the types say.',
    );
    expect(await message(() => KvCache.open(kernels as never, { sequences: 1, tokens: 64, generated: 4 }))).toBe(
      'kernels: expected kernels of a scheme, which generate gives, got those of uncompressed attention. Give these to Fp16Attention.open.',
    );
    attention.release();
    attention.release();
    expect(await message(() => attention.attend(query))).toBe(
      'attention: expected an open one, got none, as it was released. Open another one.',
    );
  });

  test('refuses more work than a launch takes', async () => {
    const attention = Fp16Attention.open(kernels, { sequences: 1, tokens: 1 });
    const queries = 65535;
    const query = new Uint16Array(queries * model.heads * model.headDim);
    const { blocksPerDimension, bytesPerBinding } = device.limits;
    const most = Math.min(
      blocksPerDimension,
      Math.floor(bytesPerBinding / (model.groupSize * (model.headDim + 4) * 4)),
    );
    const splits = Math.ceil((most + 1) / (queries * model.kvHeads));
    expect(splits).toBeLessThanOrEqual(1024);
    expect(await message(() => attention.attend(query, { queries, splits }))).toBe(
      `queries: expected at most ${most} work items (what one launch of this device takes), got ${queries * 2 * splits} (1 sequences x ${queries} queries x 2 KV heads x ${splits} splits). Attend with fewer queries a call, or with fewer splits.`,
    );
    attention.release();
  });
});

describe('what cannot be generated', () => {
  const cuda = { ...defaultTargets.cuda };
  test.each([
    [
      { ...model, headDim: 24 },
      cuda,
      {},
      'model.headDim: expected a multiple of 16, at most 256, got 24. Other head sizes have no schedule yet.',
    ],
    [
      { ...model, scoreScale: 0 },
      cuda,
      {},
      'model.scoreScale: expected a number above 0 that float32 holds at full precision, got 0. Most models have 1 / sqrt(headDim).',
    ],
    [
      model,
      { ...cuda, tensorCores: false },
      {},
      'attendFp16: expected a schedule that fits 6-2-32-r16 on cuda, got without tensor cores there is no schedule for CUDA. Change the scheme, the tunables or the target.',
    ],
    ...([0, -16, '32', undefined] as unknown as number[]).map(
      (headDim) =>
        [
          { ...model, headDim },
          cuda,
          {},
          `model.headDim: expected a multiple of 16, at most 256, got ${headDim}. Other head sizes have no schedule yet.`,
        ] as const,
    ),
    ...(
      [
        [{ heads: 7 }, 'heads: expected 6 (2 KV heads of 3 query heads), got 7'],
        [{ kvHeads: 0 }, 'kvHeads: expected a whole number of at least 1, got 0'],
        [{ groupSize: 1.5 }, 'groupSize: expected a whole number of at least 1, got 1.5'],
        [{ width: 3 }, 'width: expected 64 (2 KV heads x 32), got 3'],
      ] as const
    ).map(
      ([change, told]) =>
        [
          { ...model, ...change },
          cuda,
          {},
          `model.${told}. Let modelFrom(config) or presetModel(name) make the model.`,
        ] as const,
    ),
    [model, cuda, 5 as never, 'choice: expected tunables by name, got 5. Leave it out for the defaults.'],
    [
      { ...model, heads: 34, groupSize: 17 },
      cuda,
      {},
      'attendFp16: expected a schedule that fits 6-2-32-r16 on cuda, got needs 17 query heads a KV head in one matrix tile, which has 16 rows. Change the scheme, the tunables or the target.',
    ],
    [model, cuda, { warps: 3 }, 'attendFp16.warps: expected one of 8, 4, 2, 1, got 3. Leave it out for the default.'],
    [
      presetModel('gemma-2-9b'),
      { ...cuda, arch: 'sm_86' },
      { warps: 8, stages: 5 },
      'attendFp16: expected a schedule that fits gemma-2-9b on cuda, got attend_fp16 needs 675840 bytes of shared memory, the device has 101376. Change the scheme, the tunables or the target.',
    ],
  ] as const)('case %#', async (shape, target, choice, expected) => {
    expect(await message(() => generateFp16(shape, target, choice))).toBe(expected);
  });
});

test('every multiprocessor gets a block, and no block fewer than 128 tokens', () => {
  expect(fp16Splits(8, 8192, 132)).toBe(16);
  expect(fp16Splits(128, 8192, 132)).toBe(1);
  expect(fp16Splits(512, 8192, 132)).toBe(1);
  expect(fp16Splits(8, 300, 132)).toBe(3);
  expect(fp16Splits(8, 0, 132)).toBe(1);
  expect(fp16Splits(8, 1e6)).toBe(8);
});
