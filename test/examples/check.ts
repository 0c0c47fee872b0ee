import { inspect } from 'node:util';

/**
 * Fails unless two values are equal: numbers, strings and the like by `===`, lists of any kind by their elements, other
 * objects by their properties. A number that is expected with four decimals or more stands for all that round to it; with
 * `rounded`, numbers may also differ by 1e-12.
 */
export function check(actual: unknown, expected: unknown, { rounded = false } = {}): void {
  if (same(actual, expected, rounded ? 1e-12 : 0)) return;
  throw new Error(`${inspect(actual)} is not ${inspect(expected)}`);
}

function same(actual: unknown, expected: unknown, tolerance: number): boolean {
  if (actual === expected) return true;
  if (typeof actual === 'number' && typeof expected === 'number') {
    return Math.abs(actual - expected) <= Math.max(tolerance, halfUnitOf(expected));
  }
  if (typeof actual !== 'object' || typeof expected !== 'object' || actual === null || expected === null) return false;
  if (isList(actual) !== isList(expected)) return false;
  const [own, wanted] = [Object.entries(actual), Object.entries(expected)];
  return (
    own.length === wanted.length &&
    own.every(([name, value], index) => name === wanted[index]![0] && same(value, wanted[index]![1], tolerance))
  );
}

/** Half a unit of the last digit of a number with four decimals or more, else nothing. */
function halfUnitOf(expected: number): number {
  const decimals = /^-?\d+\.(\d{4,})$/.exec(String(expected))?.[1]?.length;
  return decimals === undefined ? 0 : 0.5 * 10 ** -decimals;
}

function isList(value: object): boolean {
  return Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView));
}
