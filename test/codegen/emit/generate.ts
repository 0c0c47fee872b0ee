/** Device expressions at random, as source text: what they compute is exact in float32, so that all targets agree. */
import fc from 'fast-check';

export type Texts = { number: string; word: string; signed: string; truth: string };

const call = (name: string, ...parts: fc.Arbitrary<string>[]): fc.Arbitrary<string> =>
  fc.tuple(...parts).map((texts) => `${name}(${texts.join(', ')})`);
const infix = (operator: string, left: fc.Arbitrary<string>, right: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(left, right).map(([first, second]) => `(${first} ${operator} ${second})`);
const choose = (condition: fc.Arbitrary<string>, side: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(condition, side, side).map(([when, yes, no]) => `(${when} ? ${yes} : ${no})`);

// Floats stay whole and below 2^24 by clamping products, so that float32 and float64 hold the same values.
const held = (text: fc.Arbitrary<string>): fc.Arbitrary<string> => text.map((one) => `clamp(${one}, -1000, 1000)`);
// Node keeps an i32 sum beyond 2^31; masking keeps both sides inside.
const masked = (text: fc.Arbitrary<string>): fc.Arbitrary<string> => text.map((one) => `(${one} & 0xfff)`);
const wrapped = (text: fc.Arbitrary<string>): fc.Arbitrary<string> => text.map((one) => `u32${one}`);

/** Expressions over `a, b: f32`, `m, n: u32`, `j, k: i32`. */
export const expressions = fc.letrec<Texts>((tie) => {
  const [number, word, signed, truth] = [tie('number'), tie('word'), tie('signed'), tie('truth')];
  const shift = fc.integer({ min: 0, max: 31 }).map(String);
  return {
    number: fc.oneof(
      { maxDepth: 4, withCrossShrink: true },
      fc.constantFrom('a', 'b', 'f32(3)', 'f32(-2)'),
      held(infix('+', number, number)),
      held(infix('-', number, number)),
      held(infix('*', number, number)),
      call('min', number, number),
      call('max', number, number),
      call('abs', number),
      call('floor', number),
      call('round', number),
      number.map((text) => `(-${text})`),
      choose(truth, number),
      call('f32', masked(signed)),
    ),
    word: fc.oneof(
      { maxDepth: 4, withCrossShrink: true },
      fc.constantFrom('m', 'n', 'u32(7)', 'u32(0xf0f0f0f0)'),
      call('uadd', word, word),
      call('umul', word, word),
      wrapped(infix('-', word, word)),
      wrapped(infix('&', word, word)),
      wrapped(infix('|', word, word)),
      wrapped(infix('^', word, word)),
      wrapped(infix('<<', word, shift)),
      infix('>>>', word, shift),
      wrapped(infix('/', word, call('max', word, fc.constant('1')))),
      infix('%', word, call('max', word, fc.constant('1'))),
      word.map((text) => `u32(~${text})`),
      call('u32', call('abs', number)),
      call('u32', truth),
      call(
        'bitsOf',
        number.map((text) => `(${text} + 0.5)`),
      ),
      call('countOneBits', word),
      choose(truth, word),
    ),
    signed: fc.oneof(
      { maxDepth: 4, withCrossShrink: true },
      fc.constantFrom('j', 'k', 'i32(-5)'),
      call('i32', word),
      call('i32', number),
      infix('-', masked(signed), masked(signed)),
      infix('*', masked(signed), masked(signed)),
      infix('>>', signed, shift),
      infix('<<', signed, shift),
      infix('^', signed, signed),
      infix('%', masked(signed), fc.constantFrom('3', '7')),
      choose(truth, signed),
    ),
    truth: fc.oneof(
      { maxDepth: 3, withCrossShrink: true },
      infix('<', number, number),
      infix('>=', word, word),
      infix('!==', signed, signed),
      infix('&&', truth, truth),
      infix('||', truth, truth),
      truth.map((text) => `!${text}`),
    ),
  };
});

/** `count` functions of each result type, the same every run. */
export function generateFunctions(
  count: number,
): { readonly name: string; readonly returns: string; readonly text: string }[] {
  const kinds = [
    { key: 'number', returns: 'f32' },
    { key: 'word', returns: 'u32' },
    { key: 'signed', returns: 'i32' },
    { key: 'truth', returns: 'bool' },
  ] as const;
  const params = 'a: f32, b: f32, m: u32, n: u32, j: i32, k: i32';
  return kinds.flatMap(({ key, returns }) =>
    fc.sample(expressions[key], { numRuns: count, seed: 20250101 }).map((expression, i) => {
      const name = `${key}${i}`;
      return {
        name,
        returns,
        text: `export function ${name}(${params}): ${returns} {\n  'device';\n  return ${expression};\n}`,
      };
    }),
  );
}
