/** What to say about each piece of TypeScript that a device cannot run: keyed by ts-morph's kind names. */
export interface Refusal {
  readonly expected: string;
  readonly received: string;
  readonly hint: string;
}

const closure: Refusal = {
  expected: 'a device function without closures',
  received: 'a function inside a function',
  hint: "Move it to the top level of the file and start it with 'device'.",
};
const text: Refusal = {
  expected: 'numbers, booleans and vectors only',
  received: 'a string',
  hint: 'Devices have no strings; pass a number, or a Static<u32> parameter to choose between variants.',
};
const nullish: Refusal = {
  expected: 'a value that is always there',
  received: 'null or undefined',
  hint: 'Write a number that stands for absence, such as 0, and compare with it.',
};
const loop = (received: string): Refusal => ({
  expected: 'a for loop with static bounds',
  received,
  hint: 'Write `for (let i = 0; i < n; i++)` with n a literal, a Static parameter or an array length.',
});
const exception = (received: string): Refusal => ({
  expected: 'a device function without exceptions',
  received,
  hint: 'Devices cannot throw; check the input before the launch, or return a value that marks the fault.',
});
const jump = (received: string, hint: string): Refusal => ({ expected: 'if, for and return only', received, hint });
const asynchronous = (received: string): Refusal => ({
  expected: 'a plain synchronous function',
  received,
  hint: 'Device functions run to their end in one thread; remove it.',
});

export const refusedStatements: Readonly<Record<string, Refusal>> = {
  WhileStatement: loop('while'),
  DoStatement: loop('do ... while'),
  ForOfStatement: loop('for ... of'),
  ForInStatement: loop('for ... in'),
  TryStatement: exception('try'),
  ThrowStatement: exception('throw'),
  SwitchStatement: jump('switch', 'Write if and else if.'),
  BreakStatement: jump('break', 'Guard the rest of the loop with an if, or return early.'),
  ContinueStatement: jump('continue', 'Guard the rest of the loop body with an if.'),
  LabeledStatement: jump('a label', 'Remove the label.'),
  FunctionDeclaration: closure,
  ClassDeclaration: {
    expected: 'statements',
    received: 'a class',
    hint: 'Write top-level device functions and pass numbers.',
  },
};

export const refusedExpressions: Readonly<Record<string, Refusal>> = {
  ArrowFunction: closure,
  FunctionExpression: closure,
  NewExpression: {
    expected: 'values that live in registers',
    received: 'new',
    hint: "Write zeros('f32', 8) for an array, or vec4f(x, y, z, w) for a vector.",
  },
  ObjectLiteralExpression: {
    expected: 'numbers, booleans and vectors only',
    received: 'an object literal',
    hint: 'Write a vector such as vec2f(x, y), or separate variables.',
  },
  ArrayLiteralExpression: {
    expected: 'an array made by zeros',
    received: 'an array literal',
    hint: "Write `const values = zeros('f32', 4);` and assign its elements, or read a Lookup.",
  },
  StringLiteral: text,
  NoSubstitutionTemplateLiteral: text,
  TemplateExpression: { ...text, received: 'a template string' },
  TaggedTemplateExpression: { ...text, received: 'a template string' },
  RegularExpressionLiteral: { ...text, received: 'a regular expression' },
  SpreadElement: {
    expected: 'every argument written out',
    received: 'a spread',
    hint: 'Pass the array itself to a FixedArray parameter, or write its elements one by one.',
  },
  AwaitExpression: asynchronous('await'),
  YieldExpression: asynchronous('yield'),
  NullKeyword: nullish,
  BigIntLiteral: { expected: 'a 32-bit number', received: 'a bigint', hint: 'Write it without the n.' },
  ThisKeyword: { expected: 'parameters and locals', received: 'this', hint: 'Pass what you need as a parameter.' },
  TypeOfExpression: { expected: 'a value', received: 'typeof', hint: 'Types are known here; remove the test.' },
  DeleteExpression: { expected: 'a value', received: 'delete', hint: 'Arrays have fixed length; remove it.' },
  VoidExpression: { expected: 'a value', received: 'void', hint: 'Remove it.' },
  AsExpression: {
    expected: 'a conversion',
    received: 'as',
    hint: 'Write the conversion that runs on the device: f32(x), i32(x), u32(x) or f16(x).',
  },
  SatisfiesExpression: { expected: 'a value', received: 'satisfies', hint: 'Remove it.' },
  TypeAssertionExpression: {
    expected: 'a conversion',
    received: 'a type assertion',
    hint: 'Write the conversion that runs on the device: f32(x), i32(x), u32(x) or f16(x).',
  },
};

export const refusedOperators: Readonly<Record<string, Refusal>> = {
  '==': { expected: '===', received: '==', hint: 'Write ===, which compares values of one type.' },
  '!=': { expected: '!==', received: '!=', hint: 'Write !==, which compares values of one type.' },
  '**': { expected: 'a device operator', received: '**', hint: 'Write x * x, or exp2(y * log2(x)) for x above 0.' },
  '??': nullishOperator('??'),
  '??=': nullishOperator('??='),
  '&&=': { expected: '=', received: '&&=', hint: 'Write `a = a && b`.' },
  '||=': { expected: '=', received: '||=', hint: 'Write `a = a || b`.' },
  ',': { expected: 'one expression', received: 'the comma operator', hint: 'Write two statements.' },
  in: { expected: 'a device operator', received: 'in', hint: 'Compare the index with the length.' },
  instanceof: { expected: 'a device operator', received: 'instanceof', hint: 'Types are known here; remove the test.' },
};

function nullishOperator(received: string): Refusal {
  return {
    expected: 'a value that is always there',
    received,
    hint: 'Nothing is null on a device; write the left side alone, or a ternary.',
  };
}

export const optionalChaining: Refusal = {
  expected: 'a value that is always there',
  received: 'optional chaining',
  hint: 'Nothing is null on a device; write `.`, `[` or `(` without the `?`.',
};
export const undefinedValue: Refusal = nullish;
export const destructuring: Refusal = {
  expected: 'one name per declaration',
  received: 'destructuring',
  hint: 'Write one const per value: `const x = pair.x;`.',
};
export const asyncFunction: Refusal = asynchronous('async');
export const generatorFunction: Refusal = asynchronous('a generator');

/** What to write instead of a member of `Math`. */
export const mathReplacements: Readonly<Record<string, string>> = {
  abs: 'abs(x)',
  min: 'min(a, b)',
  max: 'max(a, b)',
  floor: 'floor(x)',
  ceil: 'ceil(x)',
  trunc: 'trunc(x)',
  round: 'round(x), which takes ties to even',
  sqrt: 'sqrt(x)',
  exp: 'exp(x)',
  log: 'log(x)',
  log2: 'log2(x)',
  sin: 'sin(x)',
  cos: 'cos(x)',
  fround: 'f32(x)',
  f16round: 'f16(x)',
  imul: 'umul(a, b)',
  pow: 'exp2(y * log2(x)) for x above 0',
  clz32: '31 - the bit position found by comparing',
  PI: '3.141592653589793',
  E: '2.718281828459045',
  SQRT2: '1.4142135623730951',
  LN2: '0.6931471805599453',
};
