/** Prints specialised device functions as WGSL. */
import {
  type Expression,
  type For,
  type Intrinsic,
  isVector,
  type Literal,
  type Parameter,
  type ScalarName,
  type SpecializedFunction,
  type Type,
} from '../ir.js';
import { chooseByBranch } from './branches.js';
import {
  type Dialect,
  floatText,
  type Printed,
  parenthesize,
  printArguments,
  printed,
  printOrigin,
  printStatements,
  rank,
  stepText,
  text,
  unsignedText,
} from './text.js';

const scalars: Readonly<Record<ScalarName, string>> = { f32: 'f32', f16: 'f32', i32: 'i32', u32: 'u32', bool: 'bool' };

/**
 * Rounds as float16 does, by whole numbers: a compiler has been met that takes every conversion to f16 and back, packed or
 * not, for nothing to do, and `quantizeToF16` may round either way.
 */
const roundToHalf = `// The nearest float16, ties to even.
fn round_to_half(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return x;
  }
  // Ten bits of the fraction stay; beyond the largest half lies infinity.
  var rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  rounded = select(rounded, 0x7f800000u, rounded >= 0x47800000u);
  // Below 2^-14 halves are the multiples of 2^-24.
  if (size < 0x38800000u) {
    rounded = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f);
  }
  return bitcast<f32>(sign | rounded);
}
`;

function valueName(type: Type): string {
  if (typeof type !== 'string') {
    if (type.kind === 'lookup') throw new TypeError('a lookup is not a value');
    return `array<${valueName(type.element)}, ${type.length.kind === 'literal' ? String(type.length.value) : '?'}>`;
  }
  return isVector(type) ? type : scalars[type];
}

function isLookup(type: Type | 'void'): boolean {
  return typeof type !== 'string' && type.kind === 'lookup';
}

function isArray(type: Type | 'void'): boolean {
  return typeof type !== 'string' && type.kind === 'array';
}

function parameter({ name, type }: Parameter): string {
  return isArray(type) ? `${name}: ptr<function, ${valueName(type)}>` : `${name}: ${valueName(type)}`;
}

const functions: Readonly<Record<string, string>> = {
  bitsOf: 'bitcast<u32>',
  fromBits: 'bitcast<f32>',
  unpackHalf2: 'unpack2x16float',
};
const vectorOperators: Readonly<Record<string, '+' | '-' | '*'>> = {
  vectorAdd: '+',
  vectorSubtract: '-',
  vectorMultiply: '*',
  vectorScale: '*',
};

function literalText({ type, value }: Literal): string {
  if (typeof value === 'boolean') return String(value);
  if (type === 'u32') return unsignedText(value);
  return type === 'i32' ? String(value) : floatText(value);
}

/** `pointers`: the array parameters, which WGSL holds as pointers. */
function createDialect(pointers: ReadonlySet<string>): Dialect {
  function intrinsic(expression: Intrinsic): Printed {
    const { name } = expression;
    const values = printArguments(wgsl, expression.arguments);
    if (name === 'packHalf2') return { text: `pack2x16float(vec2f(${values}))`, rank: rank.primary };
    const operator = vectorOperators[name];
    if (operator) {
      const [left, right] = expression.arguments;
      return printed(wgsl, { kind: 'binary', type: expression.type, operator, left: left!, right: right! });
    }
    return { text: `${functions[name] ?? name}(${values})`, rank: rank.primary };
  }

  function argument(expression: Expression): Expression {
    if (expression.kind !== 'name' || !isArray(expression.type) || pointers.has(expression.name)) return expression;
    return { ...expression, name: `&${expression.name}` };
  }

  function loopHead(statement: For): string[] {
    const { variable, type, start, comparison, bound, step } = statement;
    const limit = parenthesize(printed(wgsl, bound), rank.shift);
    const advance = stepText(statement, text(wgsl, step));
    return [`for (var ${variable}: ${type} = ${text(wgsl, start)}; ${variable} ${comparison} ${limit}; ${advance}) {`];
  }

  const wgsl: Dialect = {
    literal: literalText,
    name: ({ name }) => name,
    convert({ type, operand }) {
      if (type === 'f16') return { text: `round_to_half(${text(wgsl, operand)})`, rank: rank.primary };
      if (type === 'f32' && operand.type === 'f16') return printed(wgsl, operand);
      return { text: `${scalars[type]}(${text(wgsl, operand)})`, rank: rank.primary };
    },
    construct: ({ type, arguments: values }) => `${type}(${printArguments(wgsl, values)})`,
    intrinsic,
    call(call) {
      const values = call.arguments.filter(({ type }) => !isLookup(type)).map(argument);
      return `${call.function}(${printArguments(wgsl, values)})`;
    },
    lookup: ({ function: target, lookup, index }) => `${target ?? lookup}(${text(wgsl, index)})`,
    element({ array, index }) {
      return `${pointers.has(array.name) ? `(*${array.name})` : array.name}[${text(wgsl, index)}]`;
    },
    select: ({ condition, yes, no }) => ({
      text: `select(${printArguments(wgsl, [no, yes, condition])})`,
      rank: rank.primary,
    }),
    shiftAmount: (expression) =>
      expression.type === 'i32' ? { kind: 'convert', type: 'u32', operand: expression } : expression,
    declare({ name, type, mutable, value }) {
      const declared = `${mutable ? 'var' : 'let'} ${name}: ${valueName(type)}`;
      // Zero is written out: a variable declared in a loop must start anew on every turn, and drivers have been met that do not.
      return value ? `${declared} = ${text(wgsl, value)};` : `${declared} = ${valueName(type)}();`;
    },
    callStatement: (call) => (call.type === 'void' ? `${text(wgsl, call)};` : `_ = ${text(wgsl, call)};`),
    loopHead,
  };
  return wgsl;
}

function printFunction(one: SpecializedFunction): string {
  const pointers = new Set(one.params.filter(({ type }) => isArray(type)).map(({ name }) => name));
  const wgsl = createDialect(pointers);
  const params = one.params
    .filter(({ type }) => !isLookup(type))
    .map(parameter)
    .join(', ');
  const returns = one.returns === 'void' ? '' : ` -> ${valueName(one.returns)}`;
  return [
    ...printOrigin(one),
    `fn ${one.emittedName}(${params})${returns} {`,
    ...printStatements(wgsl, chooseByBranch(one), '  '),
    '}',
  ].join('\n');
}

/**
 * WGSL of the functions; lookups are read through the functions they were bound to.
 *
 * @param schedule the text below them, for which helpers are printed too
 */
export function printWgsl(functions: readonly SpecializedFunction[], schedule = ''): string {
  const printed = functions.map((one) => `${printFunction(one)}\n`).join('\n');
  return /\bround_to_half\(/.test(printed + schedule) ? `${roundToHalf}\n${printed}` : printed;
}
