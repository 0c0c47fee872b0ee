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
    // biome-ignore lint/suspicious/noTemplateCurlyInString: the text is what is lowered.
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
      my.ts:4:17: expected every argument written out, got a spread. Pass the array itself to a FixedArray parameter, or write its elements one by one.
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
      my.ts:5:13: expected a device function, got g, a plain function. Make 'device' the first statement of g.
    too few arguments:
      my.ts:4:13: expected 2 arguments for max, got 1. Write every argument.
    value of nothing:
      my.ts:5:13: expected a value, got \`g()\`, which returns nothing. Call it as a statement.
    unknown library name:
      my.ts:5:13: expected a device function, got defineCodec of kvforge, which is none. See dsl/device.ts for those there are.
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
