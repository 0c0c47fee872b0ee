import type { LowRankGeometry } from '../../dsl/geometry.js';
import { factoredPasses, rotationFloats } from '../../dsl/stages/basis.js';
import { codebookSample } from '../../dsl/stages/codebook.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import type { DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { type EncodeInput, EncodeList, type EncodeSizes } from './list.js';

/** Launches of a scheme with low-rank keys: a basis, coefficients, and a codebook for the values. */
export function lowRankLaunches(
  kernels: LoadedKernels,
  g: LowRankGeometry,
  input: Required<Pick<EncodeInput, 'values'>> & EncodeInput,
  sizes: EncodeSizes,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const [, pca] = g.scheme.keys;
  const [, , quantizer] = g.scheme.values;
  const list = new EncodeList(kernels, sizes, owned);
  const floats = list.words.bind(list);
  const launch = list.launch.bind(list);
  const tiles = list.tiles.bind(list);
  const { sequence, keys, values, tables, cache } = input;
  const m = sizes.middleTokens;

  launch('copy_exact', { sequence, keys, values, cache });

  // How much channels, tokens and (token, KV head) count, where the prompt's queries decide that.
  const weights = g.weighted ? { weights: floats('weights', g.width) } : {};
  const tokenWeights = g.weighted ? { token_weights: floats('token_weights', m) } : {};
  const valueWeights = g.weighted ? { value_weights: floats('value_weights', m * g.kvHeads) } : {};
  if (input.queries) {
    const { queries } = input;
    const rows = g.heads * Math.min(sizes.queryTokens, observedQueries);
    const scores = floats('probabilities', rows * sizes.promptTokens);
    const seen = { values, probabilities: scores, outputs: floats('outputs', rows * g.headDim) };
    launch('observe_scores', { sequence, keys, queries, scores });
    launch('observe_softmax', { sequence, ...seen });
    const sums = { sensitivities: floats('sensitivities', m * g.kvHeads), masses: floats('masses', m * g.kvHeads) };
    const headFactors = { head_factors: floats('head_factors', g.kvHeads) };
    launch('observe_tokens', { sequence, ...seen, ...sums });
    launch('observe_finish', { sequence, ...sums, ...tokenWeights, ...valueWeights, ...headFactors });
    const squares = { squares: floats('squares', g.kvHeads * g.pairs) };
    launch('weigh_queries', { sequence, queries, ...squares });
    launch('weigh_finish', { sequence, ...squares, ...headFactors, cache, ...weights });
  }

  const plain = floats('plain', m * g.width);
  const mean = floats('mean', g.width);
  const partialSums = floats('partial_sums', tiles('unrope_keys', 0) * g.width);
  launch('unrope_keys', { sequence, keys, tables, ...tokenWeights, plain, partial_sums: partialSums });
  launch('mean_keys', { sequence, partial_sums: partialSums, cache, mean });

  const gram = floats('gram', g.width * g.width);
  const centred = { sequence, plain, mean, ...weights, ...tokenWeights };
  if (kernels.has('gram_finish')) {
    const partialGram = floats('partial_gram', tiles('gram_keys', 2) * g.width * g.width);
    launch('gram_keys', { ...centred, partial_gram: partialGram });
    launch('gram_finish', { sequence, partial_gram: partialGram, gram });
  } else {
    launch('gram_keys', { ...centred, gram });
  }

  let basis = floats('basis', g.width * g.rank);
  let product = floats('product', g.width * g.rank);
  launch('basis_start', { basis });
  const factored = kernels.has('basis_factor') ? { inner: floats('inner', 2 * g.rank * g.rank) } : undefined;
  for (let round = 1; round <= pca.iterations; round++) {
    launch('basis_multiply', { gram, basis, product });
    [basis, product] = [product, basis];
    if (!factored) launch('basis_orthonormalize', { basis });
    else {
      for (let pass = 0; pass < factoredPasses(round, pca.iterations); pass++) {
        launch('basis_inner', { basis, ...factored });
        launch('basis_factor', factored);
        launch('basis_solve', { ...factored, basis });
      }
    }
  }
  const small = floats('small', g.rank * g.rank);
  const vectors = floats('vectors', g.rank * g.rank);
  const eigenvalues = floats('values', g.rank);
  const columns = floats('columns', g.width * g.rank);
  launch('basis_multiply', { gram, basis, product });
  launch('basis_ritz', { basis, product, small });
  const order = floats('order', g.rank + 1);
  if (kernels.has('basis_turn')) {
    const rotations = floats('rotations', rotationFloats(g));
    launch('basis_jacobi', { small, rotations, values: eigenvalues, order });
    launch('basis_turn', { rotations, order, vectors });
  } else {
    launch('basis_jacobi', { small, vectors, values: eigenvalues, order });
  }
  launch('basis_store', { sequence, basis, vectors, cache, columns });

  if (g.allocatedGroups > 0) {
    const choices = floats('choices', g.allocatedGroups * (g.keyRowWords * 2 + 1));
    launch('allocate_bits', { sequence, values: eigenvalues, choices, cache });
  }
  const coefficients = floats('coefficients', m * g.rank);
  const tileRows = tiles('project_keys', 1) * g.rank;
  const keyMaxima = floats('partial_maxima', tileRows);
  const magnitudes = g.allocatedGroups > 0 ? { partial_magnitudes: floats('partial_magnitudes', tileRows) } : {};
  const scales = floats('scales', g.rank);
  launch('project_keys', {
    ...{ sequence, plain, mean, ...weights, columns, coefficients },
    ...{ partial_maxima: keyMaxima, ...magnitudes },
  });
  launch('scale_keys', { sequence, partial_maxima: keyMaxima, ...magnitudes, cache, scales });
  launch('pack_keys', { sequence, coefficients, scales, cache });

  const rotated = floats('rotated', m * g.width);
  const valueMaxima = floats('partial_maxima', tiles('rotate_values', 0) * g.width);
  const channelScales = floats('channel_scales', g.width);
  launch('rotate_values', { sequence, values, rotated, partial_maxima: valueMaxima });
  launch('scale_values', { sequence, partial_maxima: valueMaxima, cache, channel_scales: channelScales });

  const points = { sequence, rotated, channel_scales: channelScales };
  const centroids = floats('centroids', g.entries * g.channels);
  const cells = floats('partial_cells', tiles('codebook_assign', 0) * g.entries * (g.channels + 1));
  // Where threads have no registers for them.
  const distances = kernels.device.target === 'wgsl' ? { distances: floats('distances', codebookSample) } : {};
  launch('codebook_seed', { ...points, centroids, ...distances });
  for (let round = 0; round < quantizer.iterations; round++) {
    launch('codebook_assign', { ...points, ...valueWeights, centroids, partial_cells: cells });
    launch('codebook_update', { sequence, partial_cells: cells, centroids });
  }
  launch('codebook_store', { sequence, centroids, cache });
  launch('assign_values', { ...points, cache });
  if (quantizer.unbiased) {
    const products = floats('partial_products', tiles('value_products', 0) * 2 * g.width);
    launch('value_products', { ...points, cache, partial_products: products });
    launch('unbias_values', { sequence, partial_products: products, channel_scales: channelScales, cache });
  }
  return list.launches;
}
