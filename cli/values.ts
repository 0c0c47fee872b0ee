import { KvforgeError } from '../dsl/errors.js';

/**
 * The whole number an option gives.
 *
 * @throws KvforgeError `wrong-use` for anything else, signs and exponents included
 * @example
 * wholeNumber('--tokens', '8192', { from: 1, to: 2 ** 24 }); // 8192
 */
export function wholeNumber(
  option: string,
  text: string,
  range: { readonly from: number; readonly to: number },
): number {
  const value = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN;
  if (!(value >= range.from && value <= range.to)) {
    throw new KvforgeError('wrong-use', {
      at: option,
      expected: `a whole number from ${range.from} to ${range.to}`,
      received: JSON.stringify(text),
      hint: 'Write it in decimal digits.',
    });
  }
  return value;
}

/**
 * The one of a list of names that an option gives.
 *
 * @throws KvforgeError `wrong-use` with the list
 */
export function oneOfNames<Name extends string>(option: string, text: string, names: readonly Name[]): Name {
  const found = names.find((name) => name === text);
  if (found === undefined) {
    throw new KvforgeError('wrong-use', {
      at: option,
      expected: `one of ${names.join(', ')}`,
      received: JSON.stringify(text),
      hint: 'Names are matched exactly.',
    });
  }
  return found;
}

/** A list of values with commas between them; empty ones are refused by the reader of each. */
export function commaList(text: string): readonly string[] {
  return [...new Set(text.split(',').map((part) => part.trim()))];
}
