import { KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import { checkObject, checkWhole } from './checkInput.js';

export interface CacheCapacity {
  /** Sequences held side by side. */
  readonly sequences: number;
  /**
   * Prompt tokens of a sequence, at most. Where RoPE depends on the length (longrope, dynamic NTK), frequencies are those
   * of a prompt of as many.
   */
  readonly tokens: number;
  /** Tokens generated after the prompt that may enter the stream, at most. */
  readonly generated: number;
  /** Which layer of the model: its RoPE and sliding window; 0 if left out, as most models' layers are alike. */
  readonly layer?: number;
}

const mostTokens = 2 ** 24;

/** @throws KvforgeError `wrong-use` when a count is not a whole number in range, or past the positions of the model */
export function checkCapacity(model: ModelShape, capacity: CacheCapacity): void {
  checkObject(capacity, 'capacity', '{ sequences, tokens, generated }');
  const { sequences, tokens, generated, layer } = capacity;
  checkWhole(sequences, { at: 'sequences', least: 1, most: 65535, hint: 'Open one cache for the whole batch.' });
  const hint = 'Give the tokens of one sequence.';
  checkWhole(tokens, { at: 'tokens', least: 0, most: mostTokens, hint });
  checkWhole(generated, { at: 'generated', least: 0, most: mostTokens, hint });
  if (layer !== undefined) {
    const most = model.layers - 1;
    checkWhole(layer, { at: 'layer', least: 0, most, hint: `${model.name} has ${model.layers} layers.` });
  }
  if (tokens + generated > model.maxPositions) {
    throw new KvforgeError('wrong-use', {
      at: 'tokens',
      expected: `at most ${model.maxPositions} tokens, prompt and generated (the positions of ${model.name})`,
      received: String(tokens + generated),
      hint: 'Lower the capacity, or give the model its longer context in config.json.',
    });
  }
}
