/** How far a value is from the range of others. */
export function outside(value: number, others: readonly number[]): number {
  return Math.max(Math.min(...others) - value, value - Math.max(...others), 0);
}

/** How far past the midpoint from the value that was taken to the nearest one, over their distance. */
export function pastMidpoint(taken: number, unit: number, values: Float64Array, rounding: number): number {
  let nearest = values[0]!;
  for (const value of values) if (Math.abs(value - unit) < Math.abs(nearest - unit)) nearest = value;
  if (taken === nearest) return 0;
  const past = (Math.abs(taken - unit) - Math.abs(nearest - unit)) / 2 - rounding;
  return past <= 0 ? 0 : past / Math.abs(taken - nearest);
}
