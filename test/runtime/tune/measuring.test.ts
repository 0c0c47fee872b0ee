import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { KvforgeError } from '../../../dsl/errors.js';
import type { Device, TimeOptions } from '../../../runtime/device.js';
import { EmulatorDevice } from '../../../runtime/emulator/emulator.js';
import { copiesFor } from '../../../runtime/tune/bench.js';
import type { Reply, Request } from '../../../runtime/tune/protocol.js';
import { planSamples } from '../../../runtime/tune/sampling.js';
import { worker } from '../../../runtime/tune/worker.js';
import { WebGpuDevice } from '../../../runtime/webgpu/webgpu.js';
import { targetOf } from '../../stages/harness.js';
import { model, scheme } from '../cacheCase.js';

describe.each(['emulator', 'webgpu'] as const)('the measuring process on %s', (name) => {
  let device: Device;
  let answer: (request: Request) => Promise<Reply>;

  beforeAll(async () => {
    device =
      name === 'emulator'
        ? await EmulatorDevice.open({ checks: 'none', order: 'ascending' })
        : await WebGpuDevice.open({ adapter: 'software', poison: false });
    answer = worker({ openDevice: async () => device, resolve: async () => ({ scheme, model }) });
  });
  afterAll(() => device.close());

  const measure = (stage: string, tunables: Readonly<Record<string, number>>, splits?: number, tokens = 100) =>
    answer({
      type: 'measure',
      target: targetOf(device),
      work: { stage, shape: { sequences: 2, tokens } },
      variant: { tunables, splits },
      checked: false,
    });

  it('says what it opened', async () => {
    const reply = await answer({ type: 'open', scheme: '', model: '', device: name });
    const { identity, limits, clock } = device;
    expect(reply).toMatchObject({
      type: 'opened',
      facts: { name: identity.name, driver: identity.driver, sharedBytes: limits.sharedBytes, clock },
    });
  });

  it('times attention that is right', async () => {
    const reply = await measure('attend', { tileTokens: 8 }, 2);
    expect(reply).toMatchObject({ type: 'measured', cold: false });
    if (reply.type !== 'measured') return;
    expect(reply.samples.length).toBeGreaterThanOrEqual(3);
    expect(reply.samples.every((sample) => sample > 0)).toBe(true);
    expect(reply.error).toBeGreaterThan(0);
    expect(reply.error).toBeLessThan(1e-5);
    // Of 2 x 100 tokens in f16 it is a part, but not a small one: 6 exact tokens each, a basis and a codebook.
    expect(reply.bytes).toBeGreaterThan(2 * 6 * 16 * 2 * 2);
    expect(reply.bytes).toBeLessThan(2 * 100 * 16 * 2 * 2);
  });

  it('times a stage of compression, and decoding', async () => {
    const values = await measure('values', { tileTokens: 16 });
    expect(values).toMatchObject({ type: 'measured' });
    const decoding = await measure('decompress', { tileTokens: 8 });
    expect(decoding).toMatchObject({ type: 'measured', error: undefined });
  });

  it('times the best again, in turns', async () => {
    const variants = [8, 16].map((tileTokens) => ({ tunables: { tileTokens }, splits: 1 }));
    const work = { stage: 'attend', shape: { sequences: 1, tokens: 64 } };
    const reply = await answer({ type: 'repeat', target: targetOf(device), work, variants });
    expect(reply).toMatchObject({ type: 'repeated' });
    if (reply.type === 'repeated') expect(reply.samples.map(({ length }) => length >= 3)).toEqual([true, true]);
  });

  it('does not time what is wrong', async () => {
    const { read, time } = device;
    let timed = 0;
    device.time = (...given) => {
      timed++;
      return time.apply(device, given);
    };
    device.read = async (buffer, ...range) => {
      const bytes = await read.call(device, buffer, ...range);
      if (buffer.label === 'output') new Float32Array(bytes.buffer, bytes.byteOffset)[3]! += 0.5;
      return bytes;
    };
    try {
      const reply = await measure('attend', { tileTokens: 4 }, 1);
      expect(reply).toMatchObject({ type: 'wrong' });
      if (reply.type === 'wrong') expect(reply.reason).toMatch(/^attend: .*: error .*, at most 1\.0e-5$/);
      expect(timed).toBe(0);
    } finally {
      Object.assign(device, { read, time });
    }
  });

  it('does not time the compression of a prompt without a middle', async () => {
    const failure = { code: 'does-not-fit', at: 'values, 6 tokens', expected: 'more than 6 (those that stay exact)' };
    const rest = { received: '6', hint: 'Give more tokens.' };
    expect(await measure('values', { tileTokens: 16 }, undefined, 6)).toEqual({
      type: 'failed',
      failure: { ...failure, ...rest },
    });
  });

  it('refuses a candidate that is beyond the limits of the device, by itself', async () => {
    const { limits } = device;
    Object.defineProperty(device, 'limits', { value: { ...limits, threadsPerBlock: 1 }, configurable: true });
    try {
      const reply = await measure('decompress', { tileTokens: 8 });
      expect(reply).toEqual({
        type: 'refused',
        reason: expect.stringMatching(
          /^decompress\.(cu|wgsl): decompress: expected at most 1 threads per block \(the limit of this device\), got \d+$/,
        ),
      });
    } finally {
      Object.defineProperty(device, 'limits', { value: limits, configurable: true });
    }
  });

  it('passes on that the device lacks what the target asks for', async () => {
    const { features } = device;
    const wanted =
      name === 'emulator'
        ? targetOf(device)
        : ({ language: 'wgsl', f16: true, subgroups: false, workgroupBytes: 16384 } as const);
    Object.defineProperty(device, 'features', { value: new Set(), configurable: true });
    try {
      const shape = { sequences: 1, tokens: 64 };
      // Of a text that no test before has compiled.
      const variant = { tunables: { tileTokens: 16 } };
      const work = { stage: 'decompress', shape };
      const reply = await answer({ type: 'measure', target: wanted, work, variant, checked: false });
      expect(reply).toMatchObject({ type: 'failed', failure: { code: 'missing-capability' } });
    } finally {
      Object.defineProperty(device, 'features', { value: features, configurable: true });
    }
  });

  it('passes on what is refused', async () => {
    expect(await measure('attend', { tileTokens: 5 })).toEqual({
      type: 'failed',
      failure: {
        code: 'wrong-use',
        at: 'attend.tileTokens',
        expected: 'one of 16, 8, 4',
        received: '5',
        hint: 'Leave it out for the default.',
      },
    });
  });
});

describe('samples', () => {
  /** A device whose lists take so long, by a clock with steps of `step` microseconds that refuses to have stood still. */
  const timed = (microseconds: number, step: number, parts: Pick<Device, 'clock' | 'target'>) =>
    ({
      ...parts,
      time: async (lists: readonly unknown[], { samples, rounds }: TimeOptions) => {
        const taken = Math.floor((microseconds * lists.length * rounds) / step) * step;
        if (taken === 0) {
          const rest = { at: 'rounds', expected: 'more', received: String(rounds), hint: '' };
          throw new KvforgeError('wrong-use', rest);
        }
        return Array.from({ length: samples }, () => taken / (lists.length * rounds));
      },
    }) satisfies Partial<Device> as unknown as Device;
  const lists = [[], []] as never;

  it.each([
    ['CUDA events', 5, 0.5, { clock: 'device', target: 'cuda' }, 100],
    ['WebGPU timestamps', 5, 65.536, { clock: 'device', target: 'wgsl' }, 6600],
    ['the host', 5, 0.01, { clock: 'host', target: 'wgsl' }, 2000],
  ] as const)('are a hundred steps of the clock or more: %s', async (_, microseconds, step, parts, least) => {
    const { rounds, samples } = await planSamples(timed(microseconds, step, parts), lists);
    expect(rounds * 2 * microseconds).toBeGreaterThanOrEqual(least);
    expect(rounds * 2 * microseconds).toBeLessThan(2 * least);
    expect(samples).toBe(15);
  });

  it('are few where one takes long', async () => {
    const slow = timed(40_000, 1, { clock: 'device', target: 'cuda' });
    expect(await planSamples(slow, lists)).toEqual({ rounds: 1, samples: 3 });
  });
});

it('inputs go through twice the cache, where its size is known', () => {
  expect(copiesFor(3e6, 60e6)).toEqual({ copies: 40, cold: true });
  expect(copiesFor(200e6, 60e6)).toEqual({ copies: 1, cold: true });
  expect(copiesFor(100, 60e6)).toEqual({ copies: 256, cold: false });
  expect(copiesFor(3e6, undefined)).toEqual({ copies: 1, cold: false });
});
