import { KvforgeError } from '../../dsl/errors.js';

/** A size of the work that kernels are tuned for. */
export interface ShapeClass {
  /** Sequences of the batch. */
  readonly sequences: number;
  /** Tokens that each of them holds; for stages of a prompt, its tokens. */
  readonly tokens: number;
}

/**
 * A shape class as options and lock files write it.
 *
 * @example
 * shapeText({ sequences: 16, tokens: 8192 }); // '16x8192'
 */
export function shapeText({ sequences, tokens }: ShapeClass): string {
  return `${sequences}x${tokens}`;
}

/**
 * Reads what `shapeText` writes.
 *
 * @throws KvforgeError `wrong-use` for anything else
 * @example
 * parseShape('16x8192').tokens; // 8192
 */
export function parseShape(text: string, at = 'shape'): ShapeClass {
  const [, sequences, tokens] = /^([1-9]\d{0,4})x([1-9]\d{0,7})$/.exec(text) ?? [];
  const shape = { sequences: Number(sequences), tokens: Number(tokens) };
  if (shape.sequences <= 65535 && shape.tokens <= 2 ** 24) return shape;
  throw new KvforgeError('wrong-use', {
    at,
    expected: 'sequences x tokens, such as 16x8192 (at most 65535 sequences of 16777216 tokens)',
    received: JSON.stringify(text),
    hint: 'Write both numbers in decimal digits with an x between them.',
  });
}
