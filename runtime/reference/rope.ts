/** How a model rotates the channels of a head. */
export interface Rotation {
  /** Radians per position of each rotary pair; fewer pairs than d/2 leave the last channels as they are. */
  readonly invFreq: readonly number[];
  /** Which channels form pair j of n: j and j + n, or 2j and 2j + 1. */
  readonly pairing: 'half' | 'interleaved';
}

/**
 * The channels of rotary pair j.
 *
 * @example
 * pairChannels({ invFreq: [1, 0.1], pairing: 'half' }, 1); // [1, 3]
 */
export function pairChannels({ invFreq, pairing }: Rotation, j: number): readonly [number, number] {
  return pairing === 'half' ? [j, j + invFreq.length] : [2 * j, 2 * j + 1];
}

/**
 * Rotates one head's vector to a position: pair j turns by `position * invFreq[j]`.
 * Source: Su et al. 2021; in the rotate-half form of Hugging Face transformers, `x*cos + rotate_half(x)*sin` with
 * rotate_half([a,b]) = [-b,a], or on neighbouring channels as in GPT-J.
 *
 * @param x [d]
 * @example
 * rotate(Float64Array.of(1, 0), 1, { invFreq: [Math.PI / 2], pairing: 'half' }); // [0, 1], to rounding
 */
export function rotate(x: Float64Array, position: number, rotation: Rotation): Float64Array {
  const turned = x.slice();
  for (const [j, frequency] of rotation.invFreq.entries()) {
    const [a, b] = pairChannels(rotation, j);
    const cos = Math.cos(position * frequency);
    const sin = Math.sin(position * frequency);
    turned[a] = x[a]! * cos - x[b]! * sin;
    turned[b] = x[b]! * cos + x[a]! * sin;
  }
  return turned;
}

/** Takes back `rotate`: `k_rot*cos - rotate_half(k_rot)*sin`. */
export function unrotate(x: Float64Array, position: number, rotation: Rotation): Float64Array {
  return rotate(x, -position, rotation);
}
