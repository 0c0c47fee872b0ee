/** Density of N(0, 1). */
export function normalDensity(x: number): number {
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
}

/**
 * P(X < x) for X from N(0, 1), to 1e-13 relative to itself for x <= 0, so that tails can be subtracted.
 *
 * @example
 * normalCdf(-1.959963984540054); // 0.025, to rounding
 */
export function normalCdf(x: number): number {
  return x < 0 ? upperTail(-x) : 1 - upperTail(x);
}

/** P(from < X < to), subtracting in the tail where both are small. */
export function normalBetween(from: number, to: number): number {
  return from > 0 ? upperTail(from) - upperTail(to) : normalCdf(to) - normalCdf(from);
}

/**
 * The x with `normalCdf(x) = p`, by bisection down to neighbouring doubles.
 *
 * @param p strictly between 0 and 1
 */
export function inverseNormalCdf(p: number): number {
  if (p > 0.5) return -inverseNormalCdf(1 - p);
  let low = -40;
  let high = 0;
  for (;;) {
    const middle = (low + high) / 2;
    if (middle <= low || middle >= high) return high;
    if (normalCdf(middle) < p) low = middle;
    else high = middle;
  }
}

/**
 * P(X > x) for x >= 0. Near zero the Taylor series of the distribution, whose terms are all positive
 * (Abramowitz and Stegun 26.2.11); further out the continued fraction of Mills' ratio (26.2.14), from its far end.
 */
function upperTail(x: number): number {
  if (x === Infinity) return 0;
  if (x < 2.5) {
    let term = x;
    let sum = x;
    for (let n = 3; term > sum * 1e-17; n += 2) {
      term *= (x * x) / n;
      sum += term;
    }
    return 0.5 - normalDensity(x) * sum;
  }
  let fraction = x;
  for (let n = 200; n > 0; n--) fraction = x + n / fraction;
  return normalDensity(x) / fraction;
}
