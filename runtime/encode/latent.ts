import type { DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { type EncodeInput, EncodeList, type EncodeSizes } from './list.js';

/** Launches of a scheme that codes latents: exact tokens, then the middle, a token a block. */
export function latentLaunches(
  kernels: LoadedKernels,
  { sequence, keys, tables, cache }: EncodeInput,
  sizes: EncodeSizes,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const list = new EncodeList(kernels, sizes, owned);
  list.launch('copy_exact', { sequence, keys, cache });
  list.launch('code_latents', { sequence, keys, tables, cache });
  return list.launches;
}
