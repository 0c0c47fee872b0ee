import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import { channelMax } from '../../dsl/codecs/channelMax.js';
import { hadamard } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { pca } from '../../dsl/codecs/pca.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { vq } from '../../dsl/codecs/vq.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, type LowRankScheme, type Scheme } from '../../dsl/scheme.js';
import type { DecodedTokens } from '../../runtime/cache.js';
import type { Device } from '../../runtime/device.js';
import { normalFrom, seededRandom } from '../../runtime/reference/index.js';
import { halfBits } from '../../runtime/verify/draws.js';
import { targetOf } from '../stages/harness.js';

/** A model so narrow that a whole cache of it is a few kilobytes. */
export const model: ModelShape = modelFrom(
  {
    model_type: 'llama',
    hidden_size: 32,
    num_hidden_layers: 4,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 16,
    rope_theta: 10000,
    max_position_embeddings: 16384,
  },
  'narrow',
);

/** Codes that are found in a few rounds: how good they are is judged elsewhere. */
export const scheme: LowRankScheme = defineScheme({
  name: 'quick',
  keys: [unrope(), pca({ rank: 16, bits: 4, group: 16, iterations: 2 })],
  values: [hadamard(), channelMax(), vq({ channels: 4, entries: 16, iterations: 1 })],
  sinks: 2,
  window: 4,
  stream: lloydMax({ bits: 8 }),
});

export function generated(device: Device, own: Scheme = scheme, tensorCores = false): Promise<GeneratedKernels> {
  return generate(own, model, targetOf(device, { tensorCores }));
}

/** f16 bits of normal numbers. */
export function halves(count: number, seed: number): Uint16Array {
  const random = seededRandom(seed);
  return halfBits(Float64Array.from({ length: count }, () => normalFrom(random)));
}

/** The text of the error that a promise ends with. */
export function faultOf(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => 'no error',
    (error: Error) => `${error.name === 'KvforgeError' ? '' : `${error.name} `}${error.message}`,
  );
}

/** One token of decoded ones, [KV heads][head dim]. */
export function tokenOf({ tokens }: DecodedTokens, data: Uint16Array, token: number): Uint16Array {
  const row = new Uint16Array(model.width);
  for (let head = 0; head < model.kvHeads; head++) {
    const from = (head * tokens + token) * model.headDim;
    row.set(data.subarray(from, from + model.headDim), head * model.headDim);
  }
  return row;
}

/** The device with some of its members replaced. */
export function proxied(device: Device, own: Partial<Device>): Device {
  return new Proxy(device, {
    get(target, name) {
      if (Object.hasOwn(own, name)) return Reflect.get(own, name);
      const member: unknown = Reflect.get(target, name);
      return typeof member === 'function' ? member.bind(target) : member;
    },
  });
}
