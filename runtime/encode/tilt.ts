import { maxSweeps } from '../../dsl/stages/basis.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import type { BufferRange, DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { type EncodeInput, EncodeList, type EncodeSizes } from './list.js';

/** Launches of a scheme with tile-rotated keys: weights and mean, the transform of every head, then codes. */
export function tiltLaunches(
  kernels: LoadedKernels,
  g: TiltGeometry,
  input: EncodeInput & { readonly values: NonNullable<EncodeInput['values']> },
  sizes: EncodeSizes,
  owned: DeviceBuffer[],
): readonly Launch[] {
  const list = new EncodeList(kernels, sizes, owned);
  const floats = list.words.bind(list);
  const launch = list.launch.bind(list);
  const { sequence, keys, values, queries, tables, cache } = input;
  const m = sizes.middleTokens;
  const weighPrompt = (): BufferRange => {
    const squares = floats('squares', g.kvHeads * g.pairs);
    const weights = floats('weights', g.width);
    launch('weigh_queries', { sequence, queries: queries!, squares });
    launch('tilt_weigh', { sequence, squares, cache, weights });
    return weights;
  };
  /** @param turned keys of the middle, tile-rotated and weighted */
  const fitPrompt = (turned: BufferRange) => {
    const small = floats('small', g.width * g.headDim);
    const vectors = floats('vectors', g.width * g.headDim);
    const variances = floats('values', g.width);
    if (kernels.has('tilt_gram_finish')) {
      const slices = list.tiles('tilt_gram', 2) / g.kvHeads;
      const partial = floats('partial_gram', slices * g.width * g.headDim);
      launch('tilt_gram', { sequence, turned, partial_gram: partial });
      launch('tilt_gram_finish', { sequence, partial_gram: partial, small });
    } else {
      launch('tilt_gram', { sequence, turned, small });
    }
    const order = floats('order', g.kvHeads * (g.headDim + 1));
    if (kernels.has('basis_turn')) {
      const rotations = floats('rotations', g.kvHeads * maxSweeps * (g.headDim - 1) * g.headDim);
      launch('basis_jacobi', { small, rotations, values: variances, order });
      launch('basis_turn', { rotations, order, vectors });
    } else {
      launch('basis_jacobi', { small, vectors, values: variances, order });
    }
    const perHead = 2 * g.headGroups + 1;
    const best = {
      head_errors: floats('head_errors', g.kvHeads * perHead),
      head_candidates: floats('head_candidates', g.kvHeads * perHead),
    };
    launch('tilt_widths', { values: variances, ...best });
    const choices = floats('choices', g.kvHeads * (g.keyNibbles + 1));
    launch('tilt_allocate', { sequence, ...best, choices, cache });
    const columnScales = floats('column_scales', g.width);
    launch('tilt_store', { sequence, vectors, cache, column_scales: columnScales });
    return { vectors, columnScales };
  };

  launch('copy_exact', { sequence, keys, values, cache });
  // A prompt without a middle has nothing to fit, and its rows are not in use.
  if (m === 0) return list.launches;

  const weights = input.fit?.weights ?? weighPrompt();

  const plain = floats('plain', m * g.width);
  const mean = floats('mean', g.width);
  const sums = floats('partial_sums', list.tiles('unrope_keys', 0) * g.width);
  launch('unrope_keys', { sequence, keys, tables, plain, partial_sums: sums });
  launch('mean_keys', { sequence, partial_sums: sums, cache, mean });
  launch('tilt_turn_keys', { sequence, tables, mean, weights, plain });

  const { vectors, columnScales } = input.fit ?? fitPrompt(plain);

  const coefficients = floats('coefficients', m * g.width);
  const steps = floats('steps', list.tiles('tilt_steps', 0) * g.width);
  launch('tilt_project', { sequence, turned: plain, vectors, coefficients });
  launch('tilt_steps', { sequence, coefficients, column_scales: columnScales, cache, steps });
  launch('tilt_pack_keys', { sequence, coefficients, steps, cache });

  const rotated = floats('plain_values', m * g.width);
  launch('turn_values', { sequence, vectors: values, plain: rotated });
  if (!g.packedValues) {
    launch('scale_values', { sequence, plain: rotated, cache });
    launch('pack_values', { sequence, plain: rotated, tables, cache });
    return list.launches;
  }
  const norms = floats('norms', m * g.kvHeads);
  launch('tilt_norms', { sequence, plain: rotated, norms });
  launch('tilt_pack_values', { sequence, plain: rotated, norms, tables, cache });
  if (g.gained) {
    const products = floats('partial_products', list.tiles('tilt_products', 0) * 2 * g.width);
    launch('tilt_products', { sequence, plain: rotated, norms, tables, partial_products: products });
    launch('tilt_gains', { sequence, partial_products: products, cache });
  }
  return list.launches;
}
