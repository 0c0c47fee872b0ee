/** Prints specialised device functions as CUDA C++. */
import type {
  Expression,
  For,
  Intrinsic,
  Literal,
  Parameter,
  ScalarName,
  SpecializedFunction,
  Type,
  VectorName,
} from '../ir.js';
import { tripCount } from '../ranges.js';
import {
  type Dialect,
  floatText,
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

const scalars: Readonly<Record<ScalarName, string>> = {
  f32: 'float',
  f16: 'float',
  i32: 'int',
  u32: 'u32',
  bool: 'bool',
};

function vectorName(type: VectorName): string {
  return { f: 'float', i: 'int', u: 'uint' }[type[4] as 'f' | 'i' | 'u'] + type[3];
}

function valueName(type: Type | 'void'): string {
  if (type === 'void') return 'void';
  if (typeof type !== 'string') throw new TypeError(`a ${type.kind} is not a value`);
  return type in scalars ? scalars[type as ScalarName] : vectorName(type as VectorName);
}

function className(param: string): string {
  const pascal = param.replace(/(^|_)([a-z0-9])/g, (_, __, letter: string) => letter.toUpperCase());
  return pascal.replace(/_/g, '');
}

function parameter({ name, type }: Parameter): string {
  if (typeof type === 'string') return `${valueName(type)} ${name}`;
  if (type.kind === 'lookup') return `${className(name)} ${name}`;
  return `${valueName(type.element)} (&${name})[${lengthText(type.length)}]`;
}

function lengthText(length: Expression): string {
  return length.kind === 'literal' ? String(length.value) : '?';
}

/** Functions that exist once per argument type in C, and the names of those that do not. */
const floatFunctions: Readonly<Record<string, string>> = {
  abs: 'fabsf',
  min: 'fminf',
  max: 'fmaxf',
  floor: 'floorf',
  ceil: 'ceilf',
  trunc: 'truncf',
  round: 'rintf',
  sqrt: 'sqrtf',
  inverseSqrt: 'rsqrtf',
  exp: 'expf',
  exp2: 'exp2f',
  log: 'logf',
  log2: 'log2f',
  sin: 'sinf',
  cos: 'cosf',
  fma: 'fmaf',
};
const otherFunctions: Readonly<Record<string, string>> = {
  bitsOf: '__float_as_uint',
  fromBits: '__uint_as_float',
  countOneBits: '__popc',
  packHalf2: 'pack_half2',
  unpackHalf2: 'unpack_half2',
  dot: 'vector_dot',
  vectorAdd: 'vector_add',
  vectorSubtract: 'vector_subtract',
  vectorMultiply: 'vector_multiply',
  vectorScale: 'vector_scale',
};

function intrinsic(expression: Intrinsic): string {
  const { name, type } = expression;
  if (name === 'clamp') {
    const [x, low, high] = expression.arguments.map((argument) => text(cuda, argument));
    return type === 'f32' ? `fminf(fmaxf(${x}, ${low}), ${high})` : `min(max(${x}, ${low}), ${high})`;
  }
  const called = otherFunctions[name] ?? (type === 'f32' ? floatFunctions[name] : undefined) ?? name;
  // __popc returns an int, and an int would turn the comparisons around it signed.
  const whole = `${called}(${printArguments(cuda, expression.arguments)})`;
  return name === 'countOneBits' ? `u32(${whole})` : whole;
}

function literalText({ type, value }: Literal): string {
  if (typeof value === 'boolean') return String(value);
  if (type === 'u32') return unsignedText(value);
  // C++ reads -2147483648 as the negation of a number no int holds.
  if (type === 'i32') return value === -2147483648 ? '(-2147483647 - 1)' : String(value);
  return `${floatText(value)}f`;
}

function loopHead(statement: For): string[] {
  const { variable, type, start, comparison, bound, step } = statement;
  const limit = parenthesize(printed(cuda, bound), rank.shift);
  const advance = stepText(statement, text(cuda, step));
  const head = `for (${scalars[type]} ${variable} = ${text(cuda, start)}; ${variable} ${comparison} ${limit}; ${advance}) {`;
  const trips = tripCount(statement);
  return trips !== undefined && trips <= 64 ? ['#pragma unroll', head] : [head];
}

const cuda: Dialect = {
  literal: literalText,
  name: ({ name }) => name,
  convert({ type, operand }) {
    if (type === 'f16') return { text: `round_to_half(${text(cuda, operand)})`, rank: rank.primary };
    if (type === 'f32' && operand.type === 'f16') return printed(cuda, operand);
    return { text: `${scalars[type]}(${text(cuda, operand)})`, rank: rank.primary };
  },
  construct: ({ type, arguments: values }) => `make_${vectorName(type)}(${printArguments(cuda, values)})`,
  intrinsic: (expression) => ({ text: intrinsic(expression), rank: rank.primary }),
  call: (call) => `${call.function}(${printArguments(cuda, call.arguments)})`,
  lookup: ({ lookup, index }) => `${lookup}(${text(cuda, index)})`,
  element: ({ array, index }) => `${array.name}[${text(cuda, index)}]`,
  select({ condition, yes, no }) {
    const [first, second, third] = [condition, yes, no].map((one) => parenthesize(printed(cuda, one), rank.logic));
    return { text: `${first} ? ${second} : ${third}`, rank: rank.select };
  },
  shiftAmount: (expression) => expression,
  declare({ name, type, mutable, value }) {
    if (typeof type !== 'string') return `${valueName(type.element)} ${name}[${lengthText(type.length)}] = {};`;
    const declared = `${mutable ? '' : 'const '}${valueName(type)} ${name}`;
    return value ? `${declared} = ${text(cuda, value)};` : `${declared};`;
  },
  callStatement: (call) => `${text(cuda, call)};`,
  loopHead,
};

function printFunction(one: SpecializedFunction): string {
  const tables = one.params.filter(({ type }) => typeof type !== 'string' && type.kind === 'lookup');
  const template = tables.map(({ name }) => `typename ${className(name)}`).join(', ');
  const params = one.params.map(parameter).join(', ');
  return [
    ...printOrigin(one),
    ...(template ? [`template <${template}>`] : []),
    `__device__ __forceinline__ ${valueName(one.returns)} ${one.emittedName}(${params}) {`,
    ...printStatements(cuda, one.body, '  '),
    '}',
  ].join('\n');
}

/** CUDA C++ of the functions in the order given, which must be callee first. */
export function printCuda(functions: readonly SpecializedFunction[]): string {
  return functions.map((one) => `${printFunction(one)}\n`).join('\n');
}

function vectorHelpers(size: 2 | 3 | 4): string[] {
  const axes = 'xyzw'.slice(0, size).split('');
  const type = `float${size}`;
  const define = (returns: string, name: string, second: string, value: string): string =>
    `__device__ __forceinline__ ${returns} ${name}(${type} a, ${second}) { return ${value}; }`;
  const each = (rule: (axis: string) => string): string => `make_${type}(${axes.map(rule).join(', ')})`;
  return [
    define('float', 'vector_dot', `${type} b`, axes.map((axis) => `a.${axis} * b.${axis}`).join(' + ')),
    define(
      type,
      'vector_add',
      `${type} b`,
      each((axis) => `a.${axis} + b.${axis}`),
    ),
    define(
      type,
      'vector_subtract',
      `${type} b`,
      each((axis) => `a.${axis} - b.${axis}`),
    ),
    define(
      type,
      'vector_multiply',
      `${type} b`,
      each((axis) => `a.${axis} * b.${axis}`),
    ),
    define(
      type,
      'vector_scale',
      'float factor',
      each((axis) => `a.${axis} * factor`),
    ),
  ];
}

/** What printed functions call for vectors: CUDA has no operators on float2, float3 and float4. Once per kernel. */
export const cudaVectorHelpers: string = `${([2, 3, 4] as const).flatMap(vectorHelpers).join('\n')}\n`;
