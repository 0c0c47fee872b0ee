/**
 * A seeded stream of numbers in [0, 1), so that every result of the reference can be had again.
 * Source: mulberry32, Tommy Ettinger (public domain).
 *
 * @example
 * const random = seededRandom(1);
 * random(); // 0.6270739405881613
 */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Two uniform numbers to one from N(0, 1) (Box and Muller). */
export function normalFrom(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}
