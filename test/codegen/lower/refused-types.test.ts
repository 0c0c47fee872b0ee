import { expect, it } from 'vitest';
import { body, messages } from './support.js';

it('refuses mixed and unfit types, naming the conversion', async () => {
  const text = await messages({
    'f32 + i32': body('const y = x + n;'),
    'i32 + f32': body('const y = n + x;'),
    'u32 + i32': body('const y = w + n;'),
    'f32 from i32': body('const y: f32 = n;'),
    'f32 from bool': body('const y: f32 = flag;'),
    'bool from u32': body('if (w) {}'),
    'u32 from a fraction': body('const y: u32 = 1.5;'),
    'u32 from a negative': body('const y: u32 = -1;'),
    'f32 too large': body('const y: f32 = 1e39;'),
    'f16 not exact': body('const y: f16 = 0.1;'),
    'bare number without a type': body('let y = 0;'),
    'bare ternary without a type': body('const y = flag ? 1 : 0;'),
    'integer division': body('const y = n / 2;'),
    'integer division assignment': body('let y = n; y /= 2;'),
    'float remainder': body('const y = x % 2;'),
    'bool arithmetic': body('const y = flag + flag;'),
    'bool bits': body('const y = flag & flag;'),
    'float bits': body('const y = x & x;'),
    'float shift': body('const y = x << 1;'),
    '>> of u32': body('const y = w >> 1;'),
    '>>> of i32': body('const y = n >>> 1;'),
    'negative u32': body('const y = -w;'),
    'negative bool': body('const y = -flag;'),
    'not of a number': body('const y = !x;'),
    'f16 arithmetic': body('const y = f16(x) * f16(x);'),
    'vector arithmetic': body('const y = vec2f(x, x) + vec2f(x, x);'),
    'vector comparison': body('const y = vec2f(x, x) === vec2f(x, x);'),
    'bool order': body('const y = flag < flag;'),
    'word sign': body('const y = w ^ w;'),
    'word sign in a comparison': body('const y = (w & w) > 3;'),
    'word sign in a compound assignment': body('let y = w; y |= w << 1;'),
    'f32 of bool': body('const y = f32(flag);'),
    'abs of u32': body('const y = abs(w);'),
    'vector argument': body('const y = f32(vec2f(x, x));'),
    'argument type': `function g(x: f32): f32 { 'device'; return x; }\n${body('const y = g(n);')}`,
    'array argument': `function g(a: FixedArray<u32, 8>): void { 'device'; }\n${body('g(values);')}`,
    'array value': body('const y = values;'),
    'table value': body('const y = table;'),
    'annotated array': body('const y: FixedArray<f32, 8> = values;'),
    'called scalar': body('const y = x(1);'),
    'indexed scalar': body('const y = x[0];'),
    'indexed vector': body('const v = vec2f(x, x); const y = v[0];'),
    'float index': body('const y = values[x];'),
    'unknown property': body('const y = vec2f(x, x).z;'),
    'unknown array property': body('const y = values.size;'),
    'property of a scalar': body('const y = x.y;'),
    'zeros in an expression': body("const y = x + zeros('f32', 2);"),
    'zeros of an unknown kind': body("const y = zeros('f64', 2);"),
    'let array': body("let y = zeros('f32', 2);"),
    'length at run time': body("const y = zeros('f32', w);"),
    'constant comparison': body('if (1 < 2) {}'),
  });
  expect(text).toMatchInlineSnapshot(`
    "
    f32 + i32:
      my.ts:4:17: expected one type on both sides of +, got f32 and i32. Write \`f32(n)\`.
    i32 + f32:
      my.ts:4:13: expected one type on both sides of +, got i32 and f32. Write \`f32(n)\`.
    u32 + i32:
      my.ts:4:17: expected one type on both sides of +, got u32 and i32. Write \`u32(n)\`.
    f32 from i32:
      my.ts:4:18: expected f32, got \`n\`, a value of type i32. Write \`f32(n)\`.
    f32 from bool:
      my.ts:4:18: expected f32, got \`flag\`, a value of type bool. Write \`flag ? 1 : 0\`.
    bool from u32:
      my.ts:4:7: expected bool, got \`w\`, a value of type u32. Write \`w !== 0\`.
    u32 from a fraction:
      my.ts:4:18: expected a whole number in 0 .. 4294967295 (u32), got 1.5. Write another number or another type.
    u32 from a negative:
      my.ts:4:18: expected a whole number in 0 .. 4294967295 (u32), got -1. Write another number or another type.
    f32 too large:
      my.ts:4:18: expected a finite f32, got 1e+39. Stay within 3.4028234663852886e+38.
    f16 not exact:
      my.ts:4:18: expected a number that a half holds exactly, got 0.1. Write \`f16(0.1)\`.
    bare number without a type:
      my.ts:4:7: expected a type for y, got the bare number 0. Write \`let y: u32 = 0\`, or f32 or i32 for the type you mean.
    bare ternary without a type:
      my.ts:4:20: expected a typed value, got \`flag ? 1 : 0\`. Write \`f32(a)\`, \`i32(a)\` or \`u32(a)\` on one side.
    integer division:
      my.ts:4:13: expected i32(a / b) for a whole quotient, or f32 operands, got \`n / 2\` of i32, which is a fraction in Node and whole on a device. Write \`i32(n / 2)\`.
    integer division assignment:
      my.ts:4:14: expected i32(a / b) for a whole quotient, or f32 operands, got \`y /= 2\` of i32, which is a fraction in Node and whole on a device. Write \`y = i32(y / 2)\`.
    float remainder:
      my.ts:4:13: expected integers for %, got f32. Write \`a - b * trunc(a / b)\`.
    bool arithmetic:
      my.ts:4:13: expected numbers for +, got bool. Write \`condition ? 1 : 0\`, or && and || for conditions.
    bool bits:
      my.ts:4:13: expected numbers for &, got bool. Write \`condition ? 1 : 0\`, or && and || for conditions.
    float bits:
      my.ts:4:13: expected integers for &, got \`x\`, a value of type f32. Write u32(...) or i32(...) around it.
    float shift:
      my.ts:4:13: expected integers for <<, got \`x\`, a value of type f32. Write u32(...) or i32(...) around it.
    >> of u32:
      my.ts:4:13: expected >>> for a u32, got >>. Write >>>: Node copies the sign bit with >>, a device does not.
    >>> of i32:
      my.ts:4:13: expected >> for an i32, got >>>. Write \`u32(n) >>> n\`, or >> to keep the sign.
    negative u32:
      my.ts:4:13: expected f32 or i32 to negate, got u32. Write \`-i32(w)\`, or \`u32(0 - w)\` to wrap.
    negative bool:
      my.ts:4:13: expected f32 or i32 to negate, got bool. Write \`!flag\`.
    not of a number:
      my.ts:4:14: expected bool, got \`x\`, a value of type f32. Write \`x !== 0\`.
    f16 arithmetic:
      my.ts:4:13: expected f32 for *, got f16. Halves are only stored: compute with f32(x) and round with f16(...).
    vector arithmetic:
      my.ts:4:13: expected scalars, got vec2f + vec2f. Write vectorAdd(a, b).
    vector comparison:
      my.ts:4:13: expected scalars to compare, got vec2f. Compare the components: \`a.x < b.x\`.
    bool order:
      my.ts:4:13: expected numbers to compare, got bool. Write && and ||.
    word sign:
      my.ts:4:13: expected a word wrapped in u32(...), got \`w ^ w\`, which is negative in Node when bit 31 is set. Write \`u32(w ^ w)\`.
    word sign in a comparison:
      my.ts:4:13: expected a word wrapped in u32(...), got \`(w & w)\`, which is negative in Node when bit 31 is set. Write \`u32(w & w)\`.
    word sign in a compound assignment:
      my.ts:4:14: expected a word wrapped in u32(...), got \`y |= w << 1\`, which is negative in Node when bit 31 is set. Write \`y = u32(y | (w << 1))\`.
    f32 of bool:
      my.ts:4:17: expected a number for f32, got bool. Write \`condition ? 1 : 0\`.
    abs of u32:
      my.ts:4:17: expected f32 or i32 for abs, got u32. Convert it before abs.
    vector argument:
      my.ts:4:17: expected a number for f32, got vec2f. Convert its components one by one.
    argument type:
      my.ts:5:15: expected f32, got \`n\`, a value of type i32. Write \`f32(n)\`.
    array argument:
      my.ts:5:5: expected FixedArray<u32, 8>, got values of type FixedArray<f32, 8>. Pass a parameter or local of that type as a.
    array value:
      my.ts:4:13: expected a scalar or vector, got values of type FixedArray<f32, 8>. Read its elements as values[i]!.
    table value:
      my.ts:4:13: expected a scalar or vector, got table of type Lookup<f32>. Read it as table(i).
    annotated array:
      my.ts:4:12: expected a scalar or vector type, got FixedArray<f32, 8>. Write \`const values = zeros('f32', 8);\`, or use the array or table under its own name.
    called scalar:
      my.ts:4:13: expected a device function or a Lookup, got x of type f32. Remove the call.
    indexed scalar:
      my.ts:4:13: expected an array to index, got x of type f32. Index an array that is a parameter or a local of this function.
    indexed vector:
      my.ts:4:36: expected an array to index, got v of type vec2f. Read a component as .x, .y, .z or .w.
    float index:
      my.ts:4:20: expected u32, got \`x\`, a value of type f32. Write \`u32(x)\`.
    unknown property:
      my.ts:4:25: expected a known property, got .z of vec2f. A vec2f has .x .y.
    unknown array property:
      my.ts:4:20: expected a known property, got .size of FixedArray<f32, 8>. An array has only .length.
    property of a scalar:
      my.ts:4:15: expected a known property, got .y of f32. Only vectors and arrays have properties.
    zeros in an expression:
      my.ts:4:17: expected zeros in a declaration, got \`zeros('f32', 2)\`. Write \`const values = zeros('f32', 8);\`.
    zeros of an unknown kind:
      my.ts:4:19: expected an element kind and a length, got \`'f64'\`. Write zeros('f32', 8).
    let array:
      my.ts:4:7: expected const for an array, got let y. Write const; its elements can still be assigned.
    length at run time:
      my.ts:4:26: expected a static length, got \`w\`. Write a literal, a Static parameter, or arithmetic of them.
    constant comparison:
      my.ts:4:7: expected a parameter or local on one side, got a comparison of two numbers. Remove the test.
    "
  `);
});
