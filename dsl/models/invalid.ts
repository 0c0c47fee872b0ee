import { KvforgeError } from '../errors.js';

/**
 * The refusal of a configuration: the field, what it should have been, and what it is.
 *
 * @example
 * throw invalid('head_dim', 'an even number', 63, 'RoPE rotates channels in pairs.');
 */
export function invalid(at: string, expected: string, received: unknown, hint: string): KvforgeError {
  return new KvforgeError('invalid-model', { at, expected, received: shown(received), hint });
}

function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object' && value !== null) return 'an object';
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
