import { normalFrom, seededRandom } from '../reference/index.js';
import { type Rotation, rotate } from '../reference/rope.js';
import { halfBits } from '../verify/draws.js';

/** Directions that hold most of the keys, as they do in models. */
const directions = 32;
/** Of what lies outside of them. */
const noise = 0.1;
/** More distinct normal numbers than this make no difference to a kernel, and drawing each anew takes seconds. */
const drawn = 2 ** 16;

/** N(0, 1), from a pool that is drawn once. */
export function pooledNormal(seed: number): () => number {
  const random = seededRandom(seed);
  const pool = Float64Array.from({ length: drawn }, () => normalFrom(random));
  return () => pool[Math.floor(random() * drawn)]!;
}

export interface Shape3 {
  readonly heads: number;
  readonly tokens: number;
  readonly headDim: number;
}

/** Independent normal numbers, f16 bits [heads][tokens][head dim]. */
export function normalHalves({ heads, tokens, headDim }: Shape3, seed: number): Uint16Array {
  const pool = halfBits(Float64Array.from({ length: drawn }, pooledNormal(seed)));
  const random = seededRandom(seed + 1);
  const rows = new Uint16Array(heads * tokens * headDim);
  // A row is a run of the pool from anywhere in it.
  for (let at = 0; at < rows.length; at += headDim) {
    const from = Math.floor(random() * (drawn - headDim));
    rows.set(pool.subarray(from, from + headDim), at);
  }
  return rows;
}

const float = new Float32Array(1);
const word = new Uint32Array(float.buffer);

/** Bits of a half next to a number below 65504; zero for what is below the normal ones. Exact rounding takes seconds for a prompt. */
function nearHalf(x: number): number {
  float[0] = x;
  const size = word[0]! & 0x7fffffff;
  const sign = (word[0]! >>> 16) & 0x8000;
  // Exponents of halves are 112 less, and 13 bits of the fraction go.
  return size < 113 << 23 ? sign : sign | (((size + 0x1000) >>> 13) - (112 << 10));
}

/**
 * Keys as models have them: near to a few directions that all heads share, about N(0, 1) a channel, then rotated to
 * their positions. f16 bits [heads][tokens][head dim].
 */
export function lowRankKeys({ heads, tokens, headDim }: Shape3, rope: Rotation, seed: number): Uint16Array {
  const normal = pooledNormal(seed);
  const width = heads * headDim;
  const basis = Float64Array.from({ length: directions * width }, () => normal() / Math.sqrt(directions));
  const keys = new Uint16Array(heads * tokens * headDim);
  const row = new Float64Array(width);
  for (let token = 0; token < tokens; token++) {
    for (let i = 0; i < width; i++) row[i] = noise * normal();
    for (let k = 0; k < directions; k++) {
      // Energies fall off, as those of a model's keys do.
      const coefficient = (normal() * 2) / (1 + k / 8);
      for (let i = 0; i < width; i++) row[i]! += coefficient * basis[k * width + i]!;
    }
    for (let head = 0; head < heads; head++) {
      const turned = rotate(row.subarray(head * headDim, (head + 1) * headDim), token, rope);
      const at = (head * tokens + token) * headDim;
      for (let i = 0; i < headDim; i++) keys[at + i] = nearHalf(turned[i]!);
    }
  }
  return keys;
}
