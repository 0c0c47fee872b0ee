import { expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { check } from './check.js';
import { collect, openProject } from './collect.js';
import { examplesOf, freeNames, withChecks } from './grammar.js';

/** That an example cannot be false, or absent, without a test that says so. */

test('examples are tagged, or stand in a sentence', () => {
  expect(
    examplesOf('Adds. `add(1, 2) === 3`, `pair(1)` is `[1, 1]`\n@throws always\n@example\nadd(2, 2); // 4\n@internal'),
  ).toEqual(['add(1, 2); // 3\npair(1); // [1, 1]', 'add(2, 2); // 4']);
  expect(examplesOf('What `add` is; `a === b` holds.')).toEqual([]);
});

test('a comment after an expression is a claim', () => {
  expect(withChecks('const a = 1; // one\n// prose\nadd(\n  a,\n).x; // [3], to rounding\nadd(a);\n')).toBe(
    'const a = 1; // one\n// prose\ncheck(add(\n  a,\n).x, [3], { rounded: true });\nadd(a);\n',
  );
  expect(withChecks('next(); // the same each time')).toMatch(/^throw new Error\(/);
});

test('names that an example does not declare are found', () => {
  expect([...freeNames('const { a, b: [c] } = make({ d: 1, e }); a.f(c, b);')]).toEqual(['make', 'e', 'b']);
});

test.each([
  [1, 1],
  [0.97726, 0.9772, 'no'],
  [0.97724, 0.9772],
  [0.5001, 0.5, 'no'],
  [-0, 0],
  [Number.NaN, Number.NaN, 'no'],
  ['1', 1, 'no'],
  [Float32Array.of(1, 2), [1, 2]],
  [[1, 2, 3], [1, 2], 'no'],
  [[], {}, 'no'],
  [{ a: [1] }, { a: [1] }],
  [{ a: 1, b: 2 }, { a: 1 }, 'no'],
  [undefined, null, 'no'],
])('%j and %j are equal: %s', (actual, expected, answer = 'yes') => {
  const claim = () => check(actual, expected);
  if (answer === 'yes') claim();
  else expect(claim).toThrow(/ is not /);
});

test('rounding is allowed where an example says so', () => {
  check([1e-13, 1], [0, 1], { rounded: true });
  expect(() => check([1e-11, 1], [0, 1], { rounded: true })).toThrow();
});

test('what is public and has no example is named', () => {
  const project = openProject();
  const file = project.createSourceFile(
    packagePath('.cache', 'public.ts'),
    `/** Adds. */
export const add = (a: number) => a;
/** Is told. \`told(1) === 1\` */
export function told(a: number) { return a; }
export const five = 5;
class Base { close() {} }
/**
 * @example
 * const one = Counter.open();
 * one.count();
 */
export class Counter extends Base {
  static open() { return new Counter(); }
  count() {}
  reset() {}
  /** @internal */ drop() {}
  private hidden() {}
}
`,
  );
  expect(collect(project, ['.cache/public.ts'])).toEqual({
    examples: [
      { name: 'told', at: '.cache/public.ts:3', entry: '.cache/public.ts', text: 'told(1); // 1' },
      {
        name: 'Counter',
        at: '.cache/public.ts:7',
        entry: '.cache/public.ts',
        text: 'const one = Counter.open();\none.count();',
      },
    ],
    missing: ['.cache/public.ts:2: add', '.cache/public.ts:15: Counter.reset', '.cache/public.ts:6: Counter.close'],
  });
  file.forget();
});
