import type { ScalarGeometry } from '../../dsl/geometry.js';
import type { DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { type EncodeInput, EncodeList, type EncodeSizes } from './list.js';

/** Launches of a scheme that codes every channel by itself: scales, codes, then outliers, of keys and of values. */
export function scalarLaunches(
  kernels: LoadedKernels,
  g: ScalarGeometry,
  input: Required<Pick<EncodeInput, 'values'>> & EncodeInput,
  sizes: EncodeSizes,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const list = new EncodeList(kernels, sizes, owned);
  const { sequence, keys, values, tables, cache } = input;
  list.launch('copy_exact', { sequence, keys, values, cache });
  for (const [operand, vectors] of [
    ['keys', keys],
    ['values', values],
  ] as const) {
    const plain = list.words(`plain_${operand}`, sizes.middleTokens * g.width);
    list.launch(`turn_${operand}`, { sequence, vectors, ...(g[operand].unrotated ? { tables } : {}), plain });
    list.launch(`scale_${operand}`, { sequence, plain, cache });
    list.launch(`pack_${operand}`, { sequence, plain, tables, cache });
    if (g[operand].projection.length > 0) list.launch('sign_keys', { sequence, plain, tables, cache });
    if (g[operand].outlierCap === 0) continue;
    const clamped = list.words(`clamped_${operand}`, sizes.middleTokens * g.kvHeads);
    list.launch(`sparse_${operand}`, { sequence, plain, tables, cache, clamped });
    list.launch(`count_${operand}`, { sequence, clamped, cache });
  }
  return list.launches;
}
