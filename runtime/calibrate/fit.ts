import type { LayerShape } from '../../dsl/model.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { topEigenvectors } from '../reference/basis.js';
import { toHalf } from '../reference/quantize.js';
import { meanOf, secondMomentOf, unrotatedRows } from '../reference/secondMoment.js';
import { emptyTensor, type HeadTensor, type Matrix } from '../reference/shapes.js';
import { type TiltFit, tiledRows, widthsOf } from '../reference/tiltEncode.js';
import { queryWeights } from '../reference/weights.js';

/** One layer of one text: activations after RoPE, from position 0 on. */
export interface CalibrationText {
  /** [KV heads][tokens][head dim] */
  readonly keys: HeadTensor;
  /** [heads][positions][head dim], of any positions. */
  readonly queries: HeadTensor;
}

/**
 * What keys of one layer are coded by, of all texts together: weights by all their queries, eigenvectors of the second
 * moments of their keys about the mean of each text, and widths under the budget of a row. Sinks of every text are left out,
 * as the cache keeps them exactly, and they would decide the moments.
 *
 * @param texts one or more, each of more tokens than the scheme has sinks
 * @example
 * const narrow = presetModel('smollm2-135m');
 * const g = geometryOf(tiltFast, narrow);
 * // Its keys are [KV heads][tokens][head dim], its queries [heads][positions][head dim], after RoPE.
 * const { widths } = fitTexts(g, layerShape(narrow, 2), [text]);
 * widths.length; // g.kvHeads * g.headGroups
 */
export function fitTexts(
  g: Pick<TiltGeometry, 'kvHeads' | 'headDim' | 'tile' | 'groupComponents'> & {
    readonly scheme: TiltGeometry['scheme'];
  },
  { rope }: Pick<LayerShape, 'rope'>,
  texts: readonly CalibrationText[],
): TiltFit {
  const { kvHeads, headDim: d, tile, groupComponents } = g;
  const { sinks } = g.scheme;
  const weights = queryWeights(sideBySide(texts.map(({ queries }) => queries)), kvHeads, rope).map(toHalf);
  const total = texts.reduce((sum, { keys }) => sum + keys.tokens - sinks, 0);
  const moments = Array.from({ length: kvHeads }, () => new Float64Array(d * d));
  for (const { keys } of texts) {
    const rows = unrotatedRows(keys, sinks, keys.tokens - sinks, rope);
    const mean = meanOf(rows);
    for (const [head, sum] of moments.entries()) {
      const own = { first: sinks, head, mean, weights };
      const tiled = tiledRows(rows, own, { tile, shape: { kvHeads, headDim: d, rope } });
      const moment = secondMomentOf(tiled, new Float64Array(d));
      for (const [i, x] of moment.data.entries()) sum[i]! += (x * rows.rows) / total;
    }
  }
  const fits = moments.map((data) => topEigenvectors({ rows: d, columns: d, data } satisfies Matrix, d));
  const variances = fits.map(({ values }) => values);
  const [, , { bits }] = g.scheme.keys;
  return {
    weights,
    bases: fits.map(({ vectors }) => vectors),
    variances,
    widths: widthsOf(variances, groupComponents, bits),
  };
}

/** Tokens of all texts in one tensor. */
function sideBySide(parts: readonly HeadTensor[]): HeadTensor {
  const [{ heads, channels }] = parts as readonly [HeadTensor, ...HeadTensor[]];
  const all = emptyTensor(
    heads,
    parts.reduce((sum, { tokens }) => sum + tokens, 0),
    channels,
  );
  for (let head = 0; head < heads; head++) {
    let at = head * all.tokens * channels;
    for (const { tokens, data } of parts) {
      const own = data.subarray(head * tokens * channels, (head + 1) * tokens * channels);
      all.data.set(own, at);
      at += own.length;
    }
  }
  return all;
}
