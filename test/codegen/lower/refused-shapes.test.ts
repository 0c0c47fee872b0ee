import { expect, it } from 'vitest';
import { body, messages } from './support.js';

it('refuses assignments that leave the function or change what is fixed', async () => {
  const text = await messages({
    parameter: body('x = 1;'),
    const: body('const y = x; y = 1;'),
    'loop variable': body('for (let i = 0; i < 4; i++) { i = 2; }'),
    'outer variable': `let total = 0;\n${body('total = 1;')}`,
    'reading an outer variable': `let total = 0;\n${body('const y = x + total;')}`,
    'outer object': `const table2 = { a: 1 };\n${body('const y = table2;')}`,
    'vector component': body('let v = vec2f(x, x); v.x = 1;'),
    array: body("const y = zeros('f32', 8); values = y;"),
    'hidden parameter': body('const x: f32 = 1;'),
    'hidden local': body('const y = x; if (flag) { const y = x; }'),
    'hidden import': body('const max = x;'),
    'hidden function': `function g(): void { 'device'; }\n${body('const g = x;')}`,
    '++ of bool': body('let y = flag; y++;'),
  });
  expect(text).toMatchInlineSnapshot(`
    "
    parameter:
      my.ts:4:3: expected a let to assign, got x, a parameter. Copy it first: \`let copy = x;\`.
    const:
      my.ts:4:16: expected a let to assign, got y, a const. Declare it with let.
    loop variable:
      my.ts:4:33: expected a let to assign, got i, a loop variable. Copy it first: \`let copy = i;\`.
    outer variable:
      my.ts:5:3: expected a local to assign, got total, which is not in this function. Device functions change only their locals and array parameters; return the value.
    reading an outer variable:
      my.ts:5:17: expected parameters, locals and top-level constants, got total, a top-level let. Pass total as a parameter, or declare it const.
    outer object:
      my.ts:5:13: expected a top-level constant that is a number, got table2. Write it as a number, or pass what it holds as a parameter or a Lookup.
    vector component:
      my.ts:4:24: expected a local or an array element to assign, got \`v.x\`. Vectors and lengths do not change: build a new vector, \`vec2f(x, a.y)\`.
    array:
      my.ts:4:30: expected an array element to assign, got values of type FixedArray<f32, 8>. Copy it element by element.
    hidden parameter:
      my.ts:4:9: expected a name of its own, got x, which hides a name of the same function. Rename this x.
    hidden local:
      my.ts:4:34: expected a name of its own, got y, which hides a name of the same function. Rename this y.
    hidden import:
      my.ts:4:9: expected a name of its own, got max, which hides a top-level name. Rename this max.
    hidden function:
      my.ts:5:9: expected a name of its own, got g, which hides a top-level name. Rename this g.
    ++ of bool:
      my.ts:4:17: expected a number to count, got bool. Assign it instead.
    "
  `);
});

it('refuses loops that are not static', async () => {
  const text = await messages({
    'bound at run time': body('for (let i = 0; i < w; i++) {}'),
    'no variable': body('for (;;) {}'),
    const: body('for (const i = 0; i < 4; i++) {}'),
    'two variables': body('for (let i = 0, j = 0; i < 4; i++) {}'),
    'float variable': body('for (let i: f32 = 0; i < 4; i++) {}'),
    'other condition': body('for (let i = 0; i !== 4; i++) {}'),
    'no condition': body('for (let i = 0; ; i++) {}'),
    doubling: body('for (let i = 1; i < 4; i *= 2) {}'),
    'no step': body('for (let i = 1; i < 4; ) {}'),
    'zero step': body('for (let i = 0; i < 4; i += 0) {}'),
    'wrong direction': body('for (let i = 0; i < 4; i--) {}'),
    'u32 that never ends': body('for (let i: u32 = 3; i >= 0; i--) {}'),
    'u32 that steps past 0': body('for (let i: u32 = 5; i >= 1; i -= 2) {}'),
    'u32 that steps over 0': body('for (let i: u32 = 5; i > 0; i -= 2) {}'),
    'u32 to its last': body('for (let i: u32 = 0; i <= 4294967295; i++) {}'),
    'i32 to its last': body('for (let i: i32 = 0; i <= 2147483647; i++) {}'),
    'i32 to its first': body('for (let i: i32 = 1; i >= -2147483647; i -= 2) {}'),
  });
  expect(text).toMatchInlineSnapshot(`
    "
    bound at run time:
      my.ts:4:23: expected a static loop bound, got \`w\`, known only when the kernel runs. Loop to a literal, a Static parameter or an array length, and guard the body with an if.
    no variable:
      my.ts:4:3: expected one loop variable, got none. Write \`for (let i = 0; i < n; i++)\`.
    const:
      my.ts:4:8: expected one loop variable, got \`const i = 0\`. Write \`for (let i = 0; i < n; i++)\`.
    two variables:
      my.ts:4:8: expected one loop variable, got \`let i = 0, j = 0\`. Write \`for (let i = 0; i < n; i++)\`.
    float variable:
      my.ts:4:15: expected u32 or i32 for a loop variable, got \`f32\`. Write \`for (let i = 0; i < n; i++)\`.
    other condition:
      my.ts:4:19: expected a condition such as i < n, got \`i !== 4\`. Write \`for (let i = 0; i < n; i++)\`.
    no condition:
      my.ts:4:3: expected a condition such as i < n, got none. Write \`for (let i = 0; i < n; i++)\`.
    doubling:
      my.ts:4:26: expected i++ or i += c, got \`i *= 2\`. Write \`for (let i = 0; i < n; i++)\`, or step by \`i += 2\`; for powers of two, loop over the exponent.
    no step:
      my.ts:4:3: expected i++ or i += c, got none. Write \`for (let i = 0; i < n; i++)\`, or step by \`i += 2\`; for powers of two, loop over the exponent.
    zero step:
      my.ts:4:31: expected a static step above 0, got \`0\`. Write a whole number or a Static parameter.
    wrong direction:
      my.ts:4:3: expected a loop that ends, got < with a shrinking i. Pair < with += and > with -=.
    u32 that never ends:
      my.ts:4:3: expected a loop that ends, got a u32 that is always at least 0. Drop the u32: a loop that counts down is an i32, read as u32(i).
    u32 that steps past 0:
      my.ts:4:3: expected a loop that ends, got i, a u32 that goes on to -1 after its last turn. Drop the u32: a loop that counts down is an i32, read as u32(i).
    u32 that steps over 0:
      my.ts:4:3: expected a loop that ends, got i, a u32 that goes on to -1 after its last turn. Drop the u32: a loop that counts down is an i32, read as u32(i).
    u32 to its last:
      my.ts:4:3: expected a loop that ends, got i, a u32 that goes on to 4294967296 after its last turn. A device wraps around there: end the loop earlier, or take another step.
    i32 to its last:
      my.ts:4:3: expected a loop that ends, got i, an i32 that goes on to 2147483648 after its last turn. A device wraps around there: end the loop earlier, or take another step.
    i32 to its first:
      my.ts:4:3: expected a loop that ends, got i, an i32 that goes on to -2147483649 after its last turn. A device wraps around there: end the loop earlier, or take another step.
    "
  `);
});

it('refuses headers that do not say everything', async () => {
  const device = (head: string): string => `${head} {\n  'device';\n}`;
  const text = await messages({
    'untyped parameter': device('function f(x): void'),
    number: device('function f(x: number): void'),
    any: device('function f(x: any): void'),
    'unknown type': device('function f(x: Float): void'),
    'array type': device('function f(x: f32[]): void'),
    'function type': device('function f(x: (i: u32) => f32): void'),
    'array of arrays': device('function f(x: FixedArray<FixedArray<f32, 2>, 2>): void'),
    'length of a plain parameter': device('function f(n: u32, x: FixedArray<f32, typeof n>): void'),
    'length zero': device('function f(x: FixedArray<f32, 0>): void'),
    'static float': device('function f(x: Static<f32>): void'),
    'no return type': device('function f(x: f32)'),
    'array returned': device('function f(x: f32): FixedArray<f32, 2>'),
    optional: device('function f(x?: f32): void'),
    default: device('function f(x: f32 = 1): void'),
    rest: device('function f(...x: f32[]): void'),
    pattern: device('function f({ x }: vec2f): void'),
    generic: device('function f<T>(x: T): void'),
    async: device('async function f(x: f32): void'),
    generator: device('function* f(x: f32): void'),
    'number returned': device('function f(x: f32): number'),
    'missing return': "function f(x: f32): f32 {\n  'device';\n  if (x > 0) return x;\n}",
    'empty return': "function f(x: f32): f32 {\n  'device';\n  return;\n}",
    'value from void': body('return x;'),
    'same name twice': `${device('function f(x: f32): void')}\n${device('function f(y: f32): void')}`,
  });
  expect(text).toMatchInlineSnapshot(`
    "
    untyped parameter:
      my.ts:2:12: expected a type for x, got none. Write \`x: f32\`.
    number:
      my.ts:2:15: expected a device type, got \`number\`. Write f32, f16, i32, u32, bool or a vector such as vec4f, imported from kvforge.
    any:
      my.ts:2:15: expected a device type, got \`any\`. Write f32, f16, i32, u32, bool or a vector such as vec4f, imported from kvforge.
    unknown type:
      my.ts:2:15: expected a device type, got \`Float\`. Write f32, f16, i32, u32, bool or a vector such as vec4f, imported from kvforge.
    array type:
      my.ts:2:15: expected a length, got \`f32[]\`. Write FixedArray<f32, 8>.
    function type:
      my.ts:2:15: expected a device type, got a function type. Write Lookup<f32> for a table read by index.
    array of arrays:
      my.ts:2:26: expected a scalar or vector element, got FixedArray<f32, 2>. Flatten it into one array.
    length of a plain parameter:
      my.ts:2:39: expected an array length, got \`typeof n\`. Write a whole number, or \`typeof n\` with n a Static parameter of this function.
    length zero:
      my.ts:2:31: expected an array length, got \`0\`. Write a whole number, or \`typeof n\` with n a Static parameter of this function.
    static float:
      my.ts:2:15: expected Static<u32> or Static<i32>, got \`Static<f32>\`. Pass other numbers as plain parameters.
    no return type:
      my.ts:2:10: expected a return type for f, got none. Write \`: f32\`, or \`: void\`, after the parameters.
    array returned:
      my.ts:2:21: expected a scalar, a vector or void, got FixedArray<f32, 2>. Take the array to fill as a parameter and return void.
    optional:
      my.ts:2:12: expected a parameter that is always passed, got an optional x. Remove the ? or the default; pass it.
    default:
      my.ts:2:12: expected a parameter that is always passed, got an optional x. Remove the ? or the default; pass it.
    rest:
      my.ts:2:12: expected a fixed list of parameters, got ...x. Write FixedArray<f32, 8> for an array.
    pattern:
      my.ts:2:12: expected one name per declaration, got destructuring. Write one const per value: \`const x = pair.x;\`.
    generic:
      my.ts:2:12: expected a function without type parameters, got generics. Write one function per type, or a Static parameter for sizes.
    async:
      my.ts:2:1: expected a plain synchronous function, got async. Device functions run to their end in one thread; remove it.
    generator:
      my.ts:2:1: expected a plain synchronous function, got a generator. Device functions run to their end in one thread; remove it.
    number returned:
      my.ts:2:21: expected a device type, got \`number\`. Write f32, f16, i32, u32, bool or a vector such as vec4f, imported from kvforge.
    missing return:
      my.ts:2:10: expected a return of f32 on every path, got a path that ends without one. End the function with a return.
    empty return:
      my.ts:4:3: expected a value of type f32, got an empty return. Return a value on every path.
    value from void:
      my.ts:4:10: expected an empty return, got \`x\`. Declare what the function returns instead of void.
    same name twice:
      my.ts:5:1: expected device functions with distinct names, got f, which my.ts:2 declares too. Rename one of them.
    "
  `);
});
