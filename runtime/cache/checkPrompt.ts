import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { checkHalf } from '../halfBits.js';
import { checkObject, checkWhole } from './checkInput.js';

/** A prompt of one sequence and layer. */
export interface Prompt {
  /** f16 bits [KV heads][tokens][head dim], after RoPE at positions 0 to tokens - 1. */
  readonly keys: Uint16Array;
  /** f16 bits [KV heads][tokens][head dim]. */
  readonly values: Uint16Array;
  readonly tokens: number;
  /**
   * For schemes that weigh by queries: f16 bits [heads][positions][head dim], after RoPE, of the prompt's last positions;
   * 32 are enough.
   */
  readonly queries?: Uint16Array;
}

/**
 * @returns how many query tokens weigh the keys
 * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position; `wrong-use` for what
 * is missing
 */
export function checkPrompt(
  g: Geometry,
  prompt: Prompt,
  { tokens: most, layer }: { readonly tokens: number; readonly layer: number },
): number {
  checkObject(prompt, 'prompt', '{ keys, values, tokens }');
  const { keys, values, tokens } = prompt;
  const hint = 'Open the cache with more tokens.';
  checkWhole(tokens, { at: 'tokens', least: 1, most, bounds: 'the capacity', hint });
  const dimensions = [
    { name: 'KV head', size: g.kvHeads },
    { name: 'token', size: tokens },
    { name: 'channel', size: g.headDim },
  ];
  checkHalf(keys, { name: `keys, layer ${layer}`, dimensions });
  checkHalf(values, { name: `values, layer ${layer}`, dimensions });
  return g.weighted ? checkQueries(g, prompt, layer) : 0;
}

function checkQueries(g: Geometry, { queries, tokens: prompt }: Prompt, layer: number): number {
  if (queries === undefined || queries.length === 0) {
    throw new KvforgeError('wrong-use', {
      at: 'queries',
      expected: `queries of the prompt's last positions, as ${g.scheme.name} weighs by them`,
      received: queries === undefined ? 'nothing' : 'an empty array',
      hint: 'Pass f16 bits [heads][positions][head dim], after RoPE; 32 positions are enough.',
    });
  }
  const tokens = Math.max(1, Math.round(queries.length / (g.heads * g.headDim)));
  checkHalf(queries, {
    name: `queries, layer ${layer}`,
    dimensions: [
      { name: 'head', size: g.heads },
      { name: 'query token', size: tokens },
      { name: 'channel', size: g.headDim },
    ],
  });
  if (tokens > prompt) {
    throw new KvforgeError('invalid-input', {
      at: `queries, layer ${layer}`,
      expected: `queries of at most ${prompt} positions, the tokens of the prompt`,
      received: String(tokens),
      hint: 'Pass the queries of the last positions of the prompt.',
    });
  }
  return tokens;
}
