/**
 * Rotates one head's vector to a position: the pair of channels (j, j + d/2) turns by `position * invFreq[j]`
 * (rotate-half RoPE). Channels past `2 * invFreq.length` stay as they are.
 * Source: Su et al. 2021, in the form of Hugging Face transformers: `x*cos + rotate_half(x)*sin`, rotate_half([a,b]) = [-b,a].
 *
 * @param x [d]
 * @param invFreq radians per position, one for each pair
 * @example
 * rotate(Float64Array.of(1, 0), 1, [Math.PI / 2]); // [0, 1], to rounding
 */
export function rotate(x: Float64Array, position: number, invFreq: readonly number[]): Float64Array {
  const half = invFreq.length;
  const turned = x.slice();
  for (let j = 0; j < half; j++) {
    const cos = Math.cos(position * invFreq[j]!);
    const sin = Math.sin(position * invFreq[j]!);
    turned[j] = x[j]! * cos - x[j + half]! * sin;
    turned[j + half] = x[j + half]! * cos + x[j]! * sin;
  }
  return turned;
}

/** Takes back `rotate`: `k_rot*cos - rotate_half(k_rot)*sin`. */
export function unrotate(x: Float64Array, position: number, invFreq: readonly number[]): Float64Array {
  return rotate(x, -position, invFreq);
}
