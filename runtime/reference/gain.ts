/** Gains that are stored; what lies beyond comes of sums that say nothing. */
export function clampGain(gain: number): number {
  return Math.min(4, Math.max(0.25, gain));
}

/**
 * The factor that makes a code unbiased: coded values times it have the same product with the values as these have with
 * themselves. 1 where the products say nothing.
 *
 * @param squares sum of y * y
 * @param products sum of y * coded y
 */
export function unbiasedGain(squares: number, products: number): number {
  return products > 0 ? clampGain(squares / products) : 1;
}
