/** Evaluates what is known when a kernel is generated, with device semantics: 32-bit wrap and float32 rounding. */
import {
  abs,
  bitsOf,
  ceil,
  clamp,
  countOneBits,
  exp2,
  f16,
  floor,
  log2,
  max,
  min,
  round,
  sqrt,
  trunc,
} from '../dsl/device.js';
import { type Binary, type Expression, isInteger, type Literal, mapOperands, type ScalarName } from './ir.js';

type Known = number | boolean;

function held(type: ScalarName, value: Known): Known | undefined {
  if (typeof value === 'boolean') return value;
  if (type === 'i32') return value | 0;
  if (type === 'u32') return value >>> 0;
  // A constant that is not finite does not compile as WGSL: it stays an operation of the kernel.
  return Number.isFinite(Math.fround(value)) ? Math.fround(value) : undefined;
}

function literal(type: ScalarName, value: Known | undefined): Literal | undefined {
  const kept = value === undefined ? undefined : held(type, value);
  return kept === undefined ? undefined : { kind: 'literal', type, value: kept };
}

function foldNumbers({ operator, type }: Binary, left: number, right: number): Known | undefined {
  switch (operator) {
    case '+':
      return left + right;
    case '-':
      return left - right;
    case '*':
      return isInteger(type) ? Math.imul(left, right) : left * right;
    case '/':
      return right === 0 ? undefined : isInteger(type) ? Math.trunc(left / right) : left / right;
    case '%':
      return right === 0 ? undefined : left % right;
    case '&':
      return left & right;
    case '|':
      return left | right;
    case '^':
      return left ^ right;
    case '<<':
      return right > 31 ? undefined : left << right;
    case '>>':
      return right > 31 ? undefined : type === 'u32' ? left >>> right : left >> right;
    case '<':
      return left < right;
    case '<=':
      return left <= right;
    case '>':
      return left > right;
    case '>=':
      return left >= right;
    default:
      return undefined;
  }
}

function foldBinary(expression: Binary): Expression {
  const { left, right, operator } = expression;
  const known = left.kind === 'literal' ? left.value : right.kind === 'literal' ? right.value : undefined;
  if ((operator === '&&' || operator === '||') && typeof known === 'boolean') {
    const other = left.kind === 'literal' ? right : left;
    if (known === (operator === '&&')) return other;
    // The left side may read a table, but reads have no effect: dropping it is safe.
    return { kind: 'literal', type: 'bool', value: known };
  }
  if (left.kind !== 'literal' || right.kind !== 'literal') return expression;
  if (operator === '==' || operator === '!=') {
    return { kind: 'literal', type: 'bool', value: (left.value === right.value) === (operator === '==') };
  }
  const value = foldNumbers(expression, Number(left.value), Number(right.value));
  return literal(expression.type as ScalarName, value) ?? expression;
}

const foldable: Readonly<Record<string, unknown>> = {
  abs,
  min,
  max,
  clamp,
  floor,
  ceil,
  trunc,
  round,
  sqrt,
  exp2,
  log2,
  bitsOf,
  countOneBits,
};

/** Folds an expression whose operands are folded already. */
function foldOne(expression: Expression): Expression {
  switch (expression.kind) {
    case 'binary':
      return foldBinary(expression);
    case 'select': {
      const { condition } = expression;
      return condition.kind === 'literal' ? (condition.value ? expression.yes : expression.no) : expression;
    }
    case 'unary': {
      const { operand, operator, type } = expression;
      if (operand.kind !== 'literal') return expression;
      const value = Number(operand.value);
      const result = operator === '!' ? !operand.value : operator === '-' ? -value : ~value;
      return literal(type as ScalarName, result) ?? expression;
    }
    case 'convert': {
      const { operand, type } = expression;
      if (operand.kind !== 'literal') return expression;
      const value = Number(operand.value);
      return literal(type, type === 'f16' ? f16(value) : value) ?? expression;
    }
    case 'intrinsic': {
      const run = foldable[expression.name] as ((...given: (number | undefined)[]) => number) | undefined;
      if (!run) return expression;
      const values = expression.arguments.map((argument) =>
        argument.kind === 'literal' ? Number(argument.value) : undefined,
      );
      if (values.includes(undefined)) return expression;
      return literal(expression.type as ScalarName, run(...values)) ?? expression;
    }
    default:
      return expression;
  }
}

/** Replaces names by what is known of them and evaluates what becomes constant. */
export function fold(expression: Expression, known: ReadonlyMap<string, Expression>): Expression {
  if (expression.kind === 'name') return known.get(expression.name) ?? expression;
  return foldOne(mapOperands(expression, (operand) => fold(operand, known)));
}
