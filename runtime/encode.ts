import type { DeviceBuffer, Launch } from './device.js';
import { latentLaunches } from './encode/latent.js';
import type { EncodeInput, EncodeSizes } from './encode/list.js';
import { lowRankLaunches } from './encode/lowRank.js';
import { scalarLaunches } from './encode/scalar.js';
import { tiltLaunches } from './encode/tilt.js';
import type { LoadedKernels } from './kernels.js';

export type { EncodeInput, EncodeSizes } from './encode/list.js';

/**
 * From prompt to finished cache: the launches of every encode stage in order, and the scratch they need. Nothing is read
 * back in between, so the whole list is one submission.
 *
 * @param owned takes the scratch as it is allocated, so that the caller can release it whatever happens
 */
export function encodeLaunches(
  kernels: LoadedKernels,
  given: EncodeInput,
  sizes: EncodeSizes,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const { geometry: g } = kernels;
  if (g.family === 'latent') return latentLaunches(kernels, given, sizes, owned);
  const input = { ...given, values: given.values! };
  if (g.family === 'tilt') return tiltLaunches(kernels, g, input, sizes, owned);
  return g.family === 'scalar'
    ? scalarLaunches(kernels, g, input, sizes, owned)
    : lowRankLaunches(kernels, g, input, sizes, owned);
}
