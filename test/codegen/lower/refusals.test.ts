import { expect, it } from 'vitest';
import { lowerFiles, lowerText } from '../../../codegen/lower/lower.js';
import { body, messages, source } from './support.js';

const caught = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'LOWERED',
    (error: unknown) => (error as Error).message,
  );

it('refuses statements a device cannot run', async () => {
  const text = await messages({
    while: body('while (flag) {}'),
    'do while': body('do {} while (flag);'),
    'for of': body('for (const value of values) {}'),
    'for in': body('for (const key in values) {}'),
    try: body('try {} catch {}'),
    throw: body('throw x;'),
    switch: body('switch (n) {}'),
    break: body('for (let i = 0; i < 4; i++) { break; }'),
    continue: body('for (let i = 0; i < 4; i++) { continue; }'),
    label: body('outer: for (let i = 0; i < 4; i++) {}'),
    'nested function': body('function inner(): void {}'),
    class: body('class Inner {}'),
    var: body('var y: f32 = 1;'),
    'no initial value': body('let y: f32;'),
    destructuring: body('const { y } = vec2f(x, x);'),
    'destructuring assignment': body('[values[0]] = values;'),
    debugger: body('debugger;'),
    'dropped value': body('abs(x);'),
    'plain expression': body('x + 1;'),
    'comparison as a statement': body('x === 1;'),
  });
  expect(text).toMatchInlineSnapshot(`
    "
    while:
      my.ts:4:3: expected a for loop with static bounds, got while. Write \`for (let i = 0; i < n; i++)\` with n a literal, a Static parameter or an array length.
    do while:
      my.ts:4:3: expected a for loop with static bounds, got do ... while. Write \`for (let i = 0; i < n; i++)\` with n a literal, a Static parameter or an array length.
    for of:
      my.ts:4:3: expected a for loop with static bounds, got for ... of. Write \`for (let i = 0; i < n; i++)\` with n a literal, a Static parameter or an array length.
    for in:
      my.ts:4:3: expected a for loop with static bounds, got for ... in. Write \`for (let i = 0; i < n; i++)\` with n a literal, a Static parameter or an array length.
    try:
      my.ts:4:3: expected a device function without exceptions, got try. Devices cannot throw; check the input before the launch, or return a value that marks the fault.
    throw:
      my.ts:4:3: expected a device function without exceptions, got throw. Devices cannot throw; check the input before the launch, or return a value that marks the fault.
    switch:
      my.ts:4:3: expected if, for and return only, got switch. Write if and else if.
    break:
      my.ts:4:33: expected if, for and return only, got break. Guard the rest of the loop with an if, or return early.
    continue:
      my.ts:4:33: expected if, for and return only, got continue. Guard the rest of the loop body with an if.
    label:
      my.ts:4:3: expected if, for and return only, got a label. Remove the label.
    nested function:
      my.ts:4:3: expected a device function without closures, got a function inside a function. Move it to the top level of the file and start it with 'device'.
    class:
      my.ts:4:3: expected statements, got a class. Write top-level device functions and pass numbers.
    var:
      my.ts:4:3: expected const or let, got var. Write const, or let for what changes.
    no initial value:
      my.ts:4:7: expected an initial value, got y without one. Write \`let y: f32 = 0;\`.
    destructuring:
      my.ts:4:9: expected one name per declaration, got destructuring. Write one const per value: \`const x = pair.x;\`.
    destructuring assignment:
      my.ts:4:3: expected one name per declaration, got destructuring. Write one const per value: \`const x = pair.x;\`.
    debugger:
      my.ts:4:3: expected a statement a device can run, got \`debugger;\`. Write const, let, =, if, for or return.
    dropped value:
      my.ts:4:3: expected a statement, got \`abs(x)\`, whose value is dropped. Assign it or remove it.
    plain expression:
      my.ts:4:3: expected a statement, got \`x + 1\`. Assign it or remove it.
    comparison as a statement:
      my.ts:4:3: expected a statement, got a comparison with ===. Write = to assign, or put it into an if.
    "
  `);
});

it('refuses expressions a device cannot run', async () => {
  const text = await messages({
    arrow: body('const y = () => x;'),
    'function expression': body('const y = function () {};'),
    new: body('const y = new Float32Array(4);'),
    object: body('const y = { x };'),
    array: body('const y = [x];'),
    string: body("const y = 'text';"),
    template: body('const y = `${x}`;'),
    'template without holes': body('const y = `text`;'),
    regex: body('const y = /x/;'),
    spread: body('const y = max(...values);'),
    await: body('const y = await x;'),
    null: body('const y = null;'),
    undefined: body('const y = undefined;'),
    bigint: body('const y = 1n;'),
    this: body('const y = this;'),
    typeof: body('const y = typeof x;'),
    as: body('const y = n as f32;'),
    satisfies: body('const y = x satisfies f32;'),
    'optional member': body('const y = values?.length;'),
    'optional element': body('const y = values?.[0];'),
    'optional call': body('const y = table?.(w);'),
    nullish: body('const y = x ?? x;'),
    'nullish assignment': body('let y: f32 = 0; y ??= x;'),
    'logical assignment': body('let y = flag; y &&= flag;'),
    '==': body('const y = x == x;'),
    '!=': body('const y = x != x;'),
    '**': body('const y = x ** x;'),
    comma: body('const y = (x, x);'),
    'assignment in an expression': body('let y: f32 = 0; const z = (y = x) + x;'),
    '++ in an expression': body('let y: f32 = 0; const z = ++y;'),
    'unary plus': body('const y = +x;'),
    NaN: body('const y = NaN;'),
    'Math.max': body('const y = Math.max(x, x);'),
    'Math.PI': body('const y = Math.PI;'),
    'Math.cbrt': body('const y = Math.cbrt(x);'),
    'unknown function': body('const y = mystery(x);'),
    'unknown name': body('const y = mystery;'),
    'function as a value': body('const y = f;'),
    'missing module': `import { g } from './missing.js';\n${body('const y = g(x);')}`,
    'plain function': `function g(x: f32): f32 { return x; }\n${body('const y = g(x);')}`,
    'too few arguments': body('const y = max(x);'),
    'value of nothing': `function g(): void { 'device'; }\n${body('const y = g();')}`,
    'unknown library name': `import { defineCodec } from 'kvforge';\n${body('const y = defineCodec(x);')}`,
  });
  expect(text).toMatchInlineSnapshot(`
    "
    arrow:
      my.ts:4:13: expected a device function without closures, got a function inside a function. Move it to the top level of the file and start it with 'device'.
    function expression:
      my.ts:4:13: expected a device function without closures, got a function inside a function. Move it to the top level of the file and start it with 'device'.
    new:
      my.ts:4:13: expected values that live in registers, got new. Write zeros('f32', 8) for an array, or vec4f(x, y, z, w) for a vector.
    object:
      my.ts:4:13: expected numbers, booleans and vectors only, got an object literal. Write a vector such as vec2f(x, y), or separate variables.
    array:
      my.ts:4:13: expected an array made by zeros, got an array literal. Write \`const values = zeros('f32', 4);\` and assign its elements, or read a Lookup.
    string:
      my.ts:4:13: expected numbers, booleans and vectors only, got a string. Devices have no strings; pass a number, or a Static<u32> parameter to choose between variants.
    template:
      my.ts:4:13: expected numbers, booleans and vectors only, got a template string. Devices have no strings; pass a number, or a Static<u32> parameter to choose between variants.
    template without holes:
      my.ts:4:13: expected numbers, booleans and vectors only, got a string. Devices have no strings; pass a number, or a Static<u32> parameter to choose between variants.
    regex:
      my.ts:4:13: expected numbers, booleans and vectors only, got a regular expression. Devices have no strings; pass a number, or a Static<u32> parameter to choose between variants.
    spread:
      my.ts:4:13: expected 2 arguments for max, got 1. Write every argument.
    await:
      my.ts:4:13: expected a plain synchronous function, got await. Device functions run to their end in one thread; remove it.
    null:
      my.ts:4:13: expected a value that is always there, got null or undefined. Write a number that stands for absence, such as 0, and compare with it.
    undefined:
      my.ts:4:13: expected a value that is always there, got null or undefined. Write a number that stands for absence, such as 0, and compare with it.
    bigint:
      my.ts:4:13: expected a 32-bit number, got a bigint. Write it without the n.
    this:
      my.ts:4:13: expected parameters and locals, got this. Pass what you need as a parameter.
    typeof:
      my.ts:4:13: expected a value, got typeof. Types are known here; remove the test.
    as:
      my.ts:4:13: expected a conversion, got as. Write the conversion that runs on the device: f32(x), i32(x), u32(x) or f16(x).
    satisfies:
      my.ts:4:13: expected a value, got satisfies. Remove it.
    optional member:
      my.ts:4:13: expected a value that is always there, got optional chaining. Nothing is null on a device; write \`.\`, \`[\` or \`(\` without the \`?\`.
    optional element:
      my.ts:4:13: expected a value that is always there, got optional chaining. Nothing is null on a device; write \`.\`, \`[\` or \`(\` without the \`?\`.
    optional call:
      my.ts:4:13: expected a value that is always there, got optional chaining. Nothing is null on a device; write \`.\`, \`[\` or \`(\` without the \`?\`.
    nullish:
      my.ts:4:13: expected a value that is always there, got ??. Nothing is null on a device; write the left side alone, or a ternary.
    nullish assignment:
      my.ts:4:19: expected a value that is always there, got ??=. Nothing is null on a device; write the left side alone, or a ternary.
    logical assignment:
      my.ts:4:17: expected =, got &&=. Write \`a = a && b\`.
    ==:
      my.ts:4:13: expected ===, got ==. Write ===, which compares values of one type.
    !=:
      my.ts:4:13: expected !==, got !=. Write !==, which compares values of one type.
    **:
      my.ts:4:13: expected a device operator, got **. Write x * x, or exp2(y * log2(x)) for x above 0.
    comma:
      my.ts:4:14: expected one expression, got the comma operator. Write two statements.
    assignment in an expression:
      my.ts:4:30: expected a device operator, got \`=\` in an expression. Write the assignment as a statement of its own.
    ++ in an expression:
      my.ts:4:29: expected a value, got ++. Write \`i++\` as a statement or in the head of a for.
    unary plus:
      my.ts:4:13: expected a device operator, got unary +. Remove it; convert with f32(x).
    NaN:
      my.ts:4:13: expected a finite number, got NaN. Write a large finite number such as 3.4e38.
    Math.max:
      my.ts:4:13: expected a device function, got \`Math.max\`. Write max(a, b).
    Math.PI:
      my.ts:4:13: expected the device library, got Math.PI. Write 3.141592653589793.
    Math.cbrt:
      my.ts:4:13: expected a device function, got \`Math.cbrt\`. Call functions of kvforge or your own that start with 'device'.
    unknown function:
      my.ts:4:13: expected a device function, got mystery. Call functions of kvforge or your own that start with 'device'.
    unknown name:
      my.ts:4:13: expected a parameter, local or top-level constant, got mystery. Declare or import it.
    function as a value:
      my.ts:4:13: expected a value, got f, a function. Call it: f(...).
    missing module:
      my.ts:5:13: expected a device function, got g, from ./missing.js, which has no file here. Call functions of kvforge or your own that start with 'device'.
    plain function:
      my.ts:5:13: expected a device function, got g, a plain function. Start the body of g with the line 'device';
    too few arguments:
      my.ts:4:13: expected 2 arguments for max, got 1. Write every argument.
    value of nothing:
      my.ts:5:13: expected a value, got \`g()\`, which returns nothing. Call it as a statement.
    unknown library name:
      my.ts:5:13: expected a function of the device library, got defineCodec. See dsl/device.ts for what it holds.
    "
  `);
});

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
      LOWERED
    f16 not exact:
      my.ts:4:18: expected a number that a half holds exactly, got 0.1. Write \`f16(0.1)\`.
    bare number without a type:
      my.ts:4:7: expected a type for y, got the bare number 0. Write \`let y: u32 = 0\`, or f32 or i32 for the type you mean.
    bare ternary without a type:
      my.ts:4:20: expected a typed value, got \`flag ? 1 : 0\`. Write \`f32(a)\`, \`i32(a)\` or \`u32(a)\` on one side.
    integer division:
      my.ts:4:13: expected i32(a / b) for a whole quotient, or f32 operands, got \`n / 2\` of i32, which is a fraction in Node and whole on a device. Write \`i32(n / 2)\`.
    integer division assignment:
      my.ts:4:14: expected i32(a / b) for a whole quotient, or f32 operands, got \`y /= 2\` of i32, which is a fraction in Node and whole on a device. Write \`i32(y /= 2)\`.
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
      my.ts:4:13: expected a word wrapped in u32(...), got \`(w & w)\`, which is negative in Node when bit 31 is set. Write \`u32((w & w))\`.
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
      my.ts:5:5: expected FixedArray<u32, 8>, got values, a FixedArray<f32, 8>. Pass a parameter or local of that type as a.
    array value:
      my.ts:4:13: expected a scalar or vector, got values, a FixedArray<f32, 8>. Read its elements as values[i]!.
    table value:
      my.ts:4:13: expected a scalar or vector, got table, a Lookup<f32>. Read it as table(i).
    annotated array:
      my.ts:4:12: expected a scalar or vector type, got FixedArray<f32, 8>. Write \`const values = zeros('f32', 8);\`, or use the array or table under its own name.
    called scalar:
      my.ts:4:13: expected a device function or a Lookup, got x, a f32. Remove the call.
    indexed scalar:
      my.ts:4:13: expected an array to index, got x, a f32. Index an array that is a parameter or a local of this function.
    indexed vector:
      my.ts:4:36: expected an array to index, got v, a vec2f. Read a component as .x, .y, .z or .w.
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
      my.ts:4:30: expected an array element to assign, got values, a FixedArray<f32, 8>. Copy it element by element.
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

it('refuses recursion and writes whose order is open', async () => {
  const writer =
    "function g(a: FixedArray<f32, 8>, b: FixedArray<f32, 8>): f32 {\n  'device';\n  a[0] = b[0]!;\n  return 1;\n}\n";
  const text = await messages({
    direct: "function f(x: f32): f32 {\n  'device';\n  return f(x);\n}",
    mutual:
      "function f(x: f32): f32 {\n  'device';\n  return g(x);\n}\nfunction g(x: f32): f32 {\n  'device';\n  return f(x);\n}",
    'write inside an expression': `${writer}${body("const other = zeros('f32', 8); const y = x + g(values, other);")}`,
    alias: `${writer}${body('const y = g(values, values);')}`,
    'static at run time': `function g(k: Static<u32>): u32 { 'device'; return k; }\n${body('const y = g(w);')}`,
  });
  expect(text).toMatchInlineSnapshot(`
    "
    direct:
      my.ts:4:10: expected calls that end, got recursion: f -> f. Devices have no call stack; write a for loop with a static bound.
    mutual:
      my.ts:8:10: expected calls that end, got recursion: f -> g -> f. Devices have no call stack; write a for loop with a static bound.
    write inside an expression:
      my.ts:9:48: expected a call of its own, got a call of g, which writes to its array, inside an expression. Write \`const result = g(...);\` first, then use result.
    alias:
      my.ts:9:13: expected different arrays, got values passed twice to g, which writes to it. Copy one into a second array first: WGSL forbids aliases.
    static at run time:
      my.ts:5:15: expected a static k for g, got \`w\`, known only when the kernel runs. Pass a literal, an array length or a Static parameter as k.
    "
  `);
});

it('refuses files without device functions, with syntax errors, or that are not there', async () => {
  const outcomes = [
    await caught(lowerFiles(['no/such/file.ts'])),
    await caught(lowerText(source('function f(x: f32): f32 { return x; }'), 'my.ts')),
    await caught(lowerText("function f( {\n  'device';\n}", 'my.ts')),
  ];
  expect(outcomes.map((line) => line.replaceAll(process.cwd(), '.'))).toMatchInlineSnapshot(`
    [
      "no/such/file.ts: expected a TypeScript file, got no such file. Check the path; it is read from ..",
      "my.ts: expected at least one device function, got none. Write top-level functions whose first statement is 'device';.",
      "my.ts:2:11: expected TypeScript, got a syntax error (':' expected). Fix it; your editor marks the same place.",
    ]
  `);
});
