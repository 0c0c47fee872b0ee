import { codebookSample } from '../dsl/stages/codebook.js';
import type { BufferRange, DeviceBuffer, Launch } from './device.js';
import type { LoadedKernels } from './kernels.js';

/** Buffers of one prompt on the device. */
export interface EncodeInput {
  /** Record of the sequence, lengths already set. */
  readonly sequence: BufferRange;
  /** f16 [KV heads][prompt tokens][head dim], keys after RoPE. */
  readonly keys: BufferRange;
  readonly values: BufferRange;
  readonly tables: BufferRange;
  readonly cache: BufferRange;
}

/**
 * From prompt to finished cache: the launches of every encode stage in order, and the scratch they need. Nothing is read
 * back in between, so the whole list is one submission.
 *
 * @param middleTokens tokens of the compressed middle
 * @param owned takes the scratch as it is allocated, so that the caller can release it whatever happens
 */
export function encodeLaunches(
  kernels: LoadedKernels,
  input: EncodeInput,
  middleTokens: number,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const { geometry: g, device } = kernels;
  const [, pca] = g.scheme.keys;
  const [, , quantizer] = g.scheme.values;
  const floats = (label: string, count: number): BufferRange => {
    const buffer = device.allocate(label, Math.max(1, count) * 4);
    owned.push(buffer);
    return { buffer };
  };
  const launches: Launch[] = [];
  const launch = (entry: string, bindings: Record<string, BufferRange>) => {
    launches.push(kernels.launch(entry, { middleTokens }, bindings));
  };
  // Partial results have a row for every tile, and how long a tile is, is the kernel's own choice.
  const tiles = (entry: string, axis: 0 | 1) => kernels.launch(entry, { middleTokens }, {}).grid[axis];
  const { sequence, keys, values, tables, cache } = input;
  const m = middleTokens;

  launch('copy_exact', { sequence, keys, values, cache });

  const plain = floats('plain', m * g.width);
  const mean = floats('mean', g.width);
  const partialSums = floats('partial_sums', tiles('unrope_keys', 0) * g.width);
  launch('unrope_keys', { sequence, keys, tables, plain, partial_sums: partialSums });
  launch('mean_keys', { sequence, partial_sums: partialSums, cache, mean });

  const gram = floats('gram', g.width * g.width);
  launch('gram_keys', { sequence, plain, mean, gram });

  let basis = floats('basis', g.width * g.rank);
  let product = floats('product', g.width * g.rank);
  launch('basis_start', { basis });
  for (let round = 0; round < pca.iterations; round++) {
    launch('basis_multiply', { gram, basis, product });
    launch('basis_orthonormalize', { basis: product });
    [basis, product] = [product, basis];
  }
  const small = floats('small', g.rank * g.rank);
  const vectors = floats('vectors', g.rank * g.rank);
  const eigenvalues = floats('values', g.rank);
  const order = floats('order', g.rank);
  const columns = floats('columns', g.width * g.rank);
  launch('basis_multiply', { gram, basis, product });
  launch('basis_ritz', { basis, product, small });
  launch('basis_jacobi', { small, vectors, values: eigenvalues, order });
  launch('basis_store', { sequence, basis, vectors, cache, columns });

  const coefficients = floats('coefficients', m * g.rank);
  const keyMaxima = floats('partial_maxima', tiles('project_keys', 1) * g.rank);
  const scales = floats('scales', g.rank);
  launch('project_keys', { sequence, plain, mean, columns, coefficients, partial_maxima: keyMaxima });
  launch('scale_keys', { sequence, partial_maxima: keyMaxima, cache, scales });
  launch('pack_keys', { sequence, coefficients, scales, cache });

  const rotated = floats('rotated', m * g.width);
  const valueMaxima = floats('partial_maxima', tiles('rotate_values', 0) * g.width);
  const channelScales = floats('channel_scales', g.width);
  launch('rotate_values', { sequence, values, rotated, partial_maxima: valueMaxima });
  launch('scale_values', { sequence, partial_maxima: valueMaxima, cache, channel_scales: channelScales });

  const points = { sequence, rotated, channel_scales: channelScales };
  const centroids = floats('centroids', g.entries * g.channels);
  const cells = floats('partial_cells', tiles('codebook_assign', 0) * g.entries * (g.channels + 1));
  launch('codebook_seed', { ...points, centroids, distances: floats('distances', codebookSample) });
  for (let round = 0; round < quantizer.iterations; round++) {
    launch('codebook_assign', { ...points, centroids, partial_cells: cells });
    launch('codebook_update', { sequence, partial_cells: cells, centroids });
  }
  launch('codebook_store', { sequence, centroids, cache });
  launch('assign_values', { ...points, cache });
  return launches;
}
