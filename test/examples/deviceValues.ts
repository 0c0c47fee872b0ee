/** What examples may name of a device; apart from the other values, since it takes seconds to make. */
import { defaultTargets, generate, generateFp16 } from '../../codegen/index.js';
import { shard } from '../../dsl/index.js';
import { EmulatorDevice, Fp16Attention, KvCache, LoadedKernels } from '../../runtime/index.js';
import { findAdapter } from '../../runtime/webgpu/dawn.js';
import { keys, model, values } from './values.js';

export const device = await EmulatorDevice.open({ checks: 'none' });
export const kernels = await LoadedKernels.load(device, await generate(shard, model, defaultTargets.cuda));

const capacity = { sequences: 2, tokens: 256, generated: 64 };
const filled = KvCache.open(kernels, capacity);
await filled.prefill(0, { keys, values, tokens: 256 });
const file = await filled.save();
await filled.release();

/** A cache of two sequences, of which the first holds the prompt. Every example that names `cache` gets its own. */
export async function freshCache(): Promise<KvCache> {
  const cache = KvCache.open(kernels, capacity);
  await cache.load(file);
  return cache;
}

const exactKernels = await LoadedKernels.load(device, await generateFp16(model, defaultTargets.cuda));

/** Uncompressed attention over the prompt. */
export const fp16 = Fp16Attention.open(exactKernels, { sequences: 1, tokens: 256 });
fp16.write(0, { keys, values, tokens: 256 });

/** What a page has; here of the software adapter. */
export const navigator = { gpu: { requestAdapter: () => findAdapter('software') } };
