/** What a scheme costs: less of both is better. */
export interface Cost {
  readonly bytes: number;
  readonly error: number;
}

/**
 * Those that no other beats: no other has at most its bytes and at most its error, with less of one of them. Of several
 * with the same bytes and the same error, all are on the front or none is.
 *
 * @returns in the order given, whether each is on the front
 * @example
 * paretoFront([{ bytes: 10, error: 0.2 }, { bytes: 20, error: 0.1 }, { bytes: 20, error: 0.3 }]); // [true, true, false]
 */
export function paretoFront(costs: readonly Cost[]): readonly boolean[] {
  const beats = (a: Cost, b: Cost) =>
    a.bytes <= b.bytes && a.error <= b.error && (a.bytes < b.bytes || a.error < b.error);
  return costs.map((cost) => !costs.some((other) => beats(other, cost)));
}
