/** Unary and binary operators: which types they take and what they become. */
import type { BinaryExpression, Node, PrefixUnaryExpression } from 'ts-morph';
import { type BinaryOperator, isInteger, isVector, type ValueType } from '../ir.js';
import { combineNumbers } from './constants.js';
import type { Context } from './context.js';
import { lowerAs, lowerExpression } from './expressions.js';
import { refusedOperators } from './unsupported.js';
import { expectType, requireUnsigned, type Typed, typeBare, unify, type Value } from './values.js';

const comparisons: Readonly<Record<string, BinaryOperator>> = {
  '<': '<',
  '<=': '<=',
  '>': '>',
  '>=': '>=',
  '===': '==',
  '!==': '!=',
};
const arithmetic: ReadonlySet<string> = new Set(['+', '-', '*', '/', '%']);
const bitwise: ReadonlySet<string> = new Set(['&', '|', '^']);
const shifts: ReadonlySet<string> = new Set(['<<', '>>', '>>>']);

const vectorFunctions: Readonly<Record<string, string>> = {
  '+': 'vectorAdd(a, b)',
  '-': 'vectorSubtract(a, b)',
  '*': 'vectorMultiply(a, b), or vectorScale(a, factor)',
};

export function lowerBinary(context: Context, node: BinaryExpression, hint: ValueType | undefined): Value {
  const operator = node.getOperatorToken().getText();
  return lowerOperator(context, node, operator, node.getLeft(), node.getRight(), hint);
}

export function lowerOperator(
  context: Context,
  node: Node,
  operator: string,
  left: Node,
  right: Node,
  hint: ValueType | undefined,
): Value {
  const refusal = refusedOperators[operator];
  if (refusal) return context.refuse(node, refusal);
  if (operator === '&&' || operator === '||') {
    return {
      kind: 'binary',
      type: 'bool',
      operator,
      left: lowerAs(context, left, 'bool'),
      right: lowerAs(context, right, 'bool'),
    };
  }
  const comparison = comparisons[operator];
  if (comparison) return lowerComparison(context, comparison, operator, left, right);
  if (shifts.has(operator)) return lowerShift(context, node, operator, left, right, hint);
  if (arithmetic.has(operator) || bitwise.has(operator)) {
    return lowerArithmetic(context, node, operator as BinaryOperator, [left, right], hint);
  }
  const hintText = operator.endsWith('=')
    ? 'Write the assignment as a statement of its own.'
    : 'Write it with + - * /.';
  return context.fail(node, 'a device operator', `\`${operator}\` in an expression`, hintText);
}

/** Both operands lowered, the side without a type of its own taking that of the other. */
function lowerBoth(
  context: Context,
  operator: string,
  nodes: readonly [Node, Node],
  hint: ValueType | undefined,
): ReturnType<typeof unify> {
  const values: [Value, Value] = [lowerExpression(context, nodes[0], hint), lowerExpression(context, nodes[1], hint)];
  return unify(context, operator, nodes, values, undefined);
}

function lowerComparison(context: Context, operator: BinaryOperator, written: string, left: Node, right: Node): Value {
  const [first, second] = lowerBoth(context, written, [left, right], undefined);
  if (first.kind === 'bare' || second.kind === 'bare') {
    return context.fail(left, 'a parameter or local on one side', 'a comparison of two numbers', 'Remove the test.');
  }
  if (isVector(first.type)) {
    return context.fail(left, 'scalars to compare', first.type, 'Compare the components: `a.x < b.x`.');
  }
  if (first.type === 'bool' && operator !== '==' && operator !== '!=') {
    return context.fail(left, 'numbers to compare', 'bool', 'Write && and ||.');
  }
  requireUnsigned(context, left, first);
  requireUnsigned(context, right, second);
  return { kind: 'binary', type: 'bool', operator, left: first, right: second };
}

function lowerShift(
  context: Context,
  node: Node,
  operator: string,
  left: Node,
  right: Node,
  hint: ValueType | undefined,
): Value {
  const first = lowerExpression(context, left, isInteger(hint ?? 'void') ? hint : undefined);
  const amount = lowerExpression(context, right, 'u32');
  if (first.kind === 'bare' && amount.kind === 'bare') {
    return { kind: 'bare', value: combineNumbers(operator, first.value, amount.value) ?? 0 };
  }
  const shifted =
    first.kind === 'bare' ? typeBare(context, left, first, isInteger(hint ?? 'void') ? hint! : 'u32') : first;
  const by = amount.kind === 'bare' ? typeBare(context, right, amount, 'u32') : amount;
  requireInteger(context, left, operator, shifted);
  requireInteger(context, right, operator, by);
  if (shifted.type === 'u32' && operator === '>>') {
    return context.fail(node, '>>> for a u32', '>>', 'Write >>>: Node copies the sign bit with >>, a device does not.');
  }
  if (shifted.type === 'i32' && operator === '>>>') {
    const hintText = `Write \`u32(${context.quote(left).slice(1, -1)}) >>> n\`, or >> to keep the sign.`;
    return context.fail(node, '>> for an i32', '>>>', hintText);
  }
  const at = context.positionOf(node);
  return {
    kind: 'binary',
    type: shifted.type,
    operator: operator === '<<' ? '<<' : '>>',
    left: shifted,
    right: by,
    at,
  };
}

function requireInteger(context: Context, node: Node, operator: string, value: Typed): void {
  if (isInteger(value.type)) return;
  const hint = value.type === 'bool' ? 'Write && and || for conditions.' : 'Write u32(...) or i32(...) around it.';
  context.fail(node, `integers for ${operator}`, `${context.quote(node)}, a value of type ${value.type}`, hint);
}

function lowerArithmetic(
  context: Context,
  node: Node,
  operator: BinaryOperator,
  nodes: readonly [Node, Node],
  hint: ValueType | undefined,
): Value {
  const [left, right] = lowerBoth(context, operator, nodes, hint);
  if (left.kind === 'bare' || right.kind === 'bare') {
    const value = combineNumbers(operator, (left as { value: number }).value, (right as { value: number }).value) ?? 0;
    return { kind: 'bare', value };
  }
  const { type } = left;
  if (type === 'bool') {
    return context.fail(
      nodes[0],
      `numbers for ${operator}`,
      'bool',
      'Write `condition ? 1 : 0`, or && and || for conditions.',
    );
  }
  if (type === 'f16') {
    return context.fail(
      nodes[0],
      `f32 for ${operator}`,
      'f16',
      'Halves are only stored: compute with f32(x) and round with f16(...).',
    );
  }
  if (isVector(type)) {
    const instead = vectorFunctions[operator] ?? 'the components: `vec2f(a.x, a.y)`';
    return context.fail(node, 'scalars', `${type} ${operator} ${right.type}`, `Write ${instead}.`);
  }
  if (bitwise.has(operator)) {
    requireInteger(context, nodes[0], operator, left);
    return { kind: 'binary', type, operator, left, right };
  }
  if (operator === '%' && !isInteger(type)) {
    return context.fail(node, 'integers for %', type, 'Write `a - b * trunc(a / b)`.');
  }
  if (operator === '/' && isInteger(type)) {
    const quotient = `${type}(${nodes[0].getText()} / ${nodes[1].getText()})`;
    const compound = context.morph.Node.isBinaryExpression(node) && node.getOperatorToken().getText() === '/=';
    return context.fail(
      node,
      `${type}(a / b) for a whole quotient, or f32 operands`,
      `${context.quote(node)} of ${type}, which is a fraction in Node and whole on a device`,
      `Write \`${compound ? `${nodes[0].getText()} = ` : ''}${quotient}\`.`,
    );
  }
  requireUnsigned(context, nodes[0], left);
  requireUnsigned(context, nodes[1], right);
  return { kind: 'binary', type, operator, left, right, ...(operator === '%' ? { at: context.positionOf(node) } : {}) };
}

/** `u32(a / b)`: the whole quotient of two integers of one type; undefined when it is no such division. */
export function lowerWholeDivision(context: Context, node: Node): Typed | undefined {
  const { Node } = context.morph;
  if (!Node.isBinaryExpression(node) || node.getOperatorToken().getText() !== '/') return undefined;
  const nodes: [Node, Node] = [node.getLeft(), node.getRight()];
  const [left, right] = lowerBoth(context, '/', nodes, undefined);
  if (left.kind === 'bare' || right.kind === 'bare' || !isInteger(left.type)) return undefined;
  requireUnsigned(context, nodes[0], left);
  requireUnsigned(context, nodes[1], right);
  return { kind: 'binary', type: left.type, operator: '/', left, right, at: context.positionOf(node) };
}

export function lowerUnary(context: Context, node: PrefixUnaryExpression, hint: ValueType | undefined): Value {
  const operator = node.getText()[0];
  const operand = node.getOperand();
  if (/^(\+\+|--)/.test(node.getText())) {
    return context.fail(
      node,
      'a value',
      node.getText().slice(0, 2),
      'Write `i++` as a statement or in the head of a for.',
    );
  }
  if (operator === '!') return { kind: 'unary', type: 'bool', operator, operand: lowerAs(context, operand, 'bool') };
  if (operator === '-') return lowerNegation(context, node, hint);
  const value = lowerExpression(context, operand, hint);
  if (operator === '~') {
    if (value.kind === 'bare') return { kind: 'bare', value: hint === 'u32' ? ~value.value >>> 0 : ~value.value };
    requireInteger(context, operand, '~', value);
    return { kind: 'unary', type: value.type, operator, operand: value };
  }
  return context.fail(node, 'a device operator', 'unary +', 'Remove it; convert with f32(x).');
}

function lowerNegation(context: Context, node: PrefixUnaryExpression, hint: ValueType | undefined): Value {
  const operand = node.getOperand();
  const value = lowerExpression(context, operand, hint);
  if (value.kind === 'bare') return { kind: 'bare', value: -value.value };
  if (value.type === 'f32' || value.type === 'i32')
    return { kind: 'unary', type: value.type, operator: '-', operand: value };
  const written = context.quote(operand).slice(1, -1);
  const hints: Readonly<Record<string, string>> = {
    u32: `Write \`-i32(${written})\`, or \`u32(0 - ${written})\` to wrap.`,
    f16: `Write \`-f32(${written})\`.`,
    bool: `Write \`!${written}\`.`,
  };
  return context.fail(node, 'f32 or i32 to negate', value.type, hints[value.type] ?? 'Write vectorScale(a, -1).');
}

/** Kept beside the operators because compound assignment types its right side the same way. */
export function lowerCompound(
  context: Context,
  node: Node,
  operator: string,
  left: Node,
  right: Node,
  type: ValueType,
): Typed {
  return expectType(context, node, lowerOperator(context, node, operator, left, right, type), type);
}
