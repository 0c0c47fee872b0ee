import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { checkFit } from '../calibrate/checkFit.js';
import { checkHalf, type HalfTensorShape } from '../halfBits.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { checkObject, checkWhole, shown } from './checkInput.js';

/** A prompt of one sequence and layer. */
export interface Prompt {
  /** f16 bits [KV heads][tokens][head dim], after RoPE at positions 0 to tokens - 1. */
  readonly keys: Uint16Array;
  /** f16 bits [KV heads][tokens][head dim]. Left out for latents: there, a token of `keys` is its latent and its rotary part. */
  readonly values?: Uint16Array | undefined;
  readonly tokens: number;
  /**
   * For schemes that weigh by queries: f16 bits [heads][positions][head dim], after RoPE, of the prompt's last positions;
   * 32 are enough.
   */
  readonly queries?: Uint16Array;
  /**
   * For schemes with tile-rotated keys, in place of queries: the layer of a calibration. Weights, transforms and widths are
   * its own then, and the prompt gives mean, steps and codes. It stays in device memory with the cache until another one
   * is given, so give the same object for all prompts of a layer, and leave its numbers as they are.
   */
  readonly fit?: TiltFit;
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
  checkValues(g, values, { name: `values, layer ${layer}`, dimensions });
  if (prompt.fit !== undefined) {
    if (g.family !== 'tilt') {
      const expected = `nothing, as ${g.scheme.name} does not rotate keys within tiles`;
      throw new KvforgeError('wrong-use', { at: 'fit', expected, received: 'a fit', hint: 'Leave it out.' });
    }
    checkFit(g, prompt.fit, `fit, layer ${layer}`);
    return 0;
  }
  return g.weighted ? checkQueries(g, prompt, layer) : 0;
}

/**
 * Values beside keys, of the same shape; none of latents.
 *
 * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity; `wrong-use` for what is missing, or too much
 */
export function checkValues(g: Geometry, values: Uint16Array | undefined, shape: HalfTensorShape): void {
  if (g.family !== 'latent') {
    checkHalf(values as Uint16Array, shape);
    return;
  }
  if (values === undefined) return;
  throw new KvforgeError('wrong-use', {
    at: shape.name,
    expected: `nothing, as ${g.scheme.name} codes latents`,
    received: ArrayBuffer.isView(values) ? 'an array' : shown(values),
    hint: 'Pass latent and rotary part of every token as keys.',
  });
}

function checkQueries(g: Geometry, { queries, tokens: prompt }: Prompt, layer: number): number {
  if (!queries || queries.length === 0) {
    throw new KvforgeError('wrong-use', {
      at: 'queries',
      expected: `queries of the prompt's last positions, as ${g.scheme.name} weighs by them`,
      received: queries ? 'an empty array' : 'nothing',
      hint:
        g.family === 'tilt'
          ? 'Pass f16 bits [heads][positions][head dim], after RoPE, or a layer of a calibration as fit.'
          : 'Pass f16 bits [heads][positions][head dim], after RoPE; 32 positions are enough.',
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
