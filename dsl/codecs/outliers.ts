import type { OutlierCodec } from '../codec.js';

/**
 * Keeps numbers beyond the range of their code exact but for f16: for each token and KV head the `cap` whose codes are
 * farthest from them. Any beyond these are clamped, as all would be without this step, and counted. A word each, whether
 * there are so many or not: rows of one length need no table of where they begin, and no thread has more to do than
 * another.
 *
 * @param cap 1 to 8
 * @example
 * [unrope(), perChannel(nuq({ bits: 3 }), { trim: 0.005 }), outliers({ cap: 2 })]
 */
export function outliers({ cap }: { cap: number }): OutlierCodec {
  return { kind: 'outliers', name: 'outliers', cap };
}
