import type { Geometry } from '../../dsl/geometry.js';
import { emptyTensor, type HeadTensor } from '../reference/index.js';
import { halfBits, halfValues, kinds, numbers } from './draws.js';

export interface PromptQueries {
  /** f16 bits [heads][query tokens][head dim]. */
  readonly bits: Uint16Array;
  /** The same numbers. */
  readonly exact: HeadTensor;
}

/** The queries of a prompt's last positions: of any kind, and any number up to a little past one tile. */
export function drawPromptQueries(g: Geometry, promptTokens: number, seed: number): PromptQueries {
  const tokens = Math.min(promptTokens, 1 + (seed % 40));
  const kind = kinds[seed % kinds.length]!;
  const bits = halfBits(numbers({ kind, seed: seed + 3 }, g.heads * tokens, g.headDim));
  return { bits, exact: { ...emptyTensor(g.heads, tokens, g.headDim), data: halfValues(bits) } };
}
