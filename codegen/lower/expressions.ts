import type {
  ElementAccessExpression,
  Identifier,
  Node,
  PropertyAccessExpression,
  Expression as Source,
} from 'ts-morph';
import {
  describeType,
  type Element,
  isInteger,
  isValueType,
  isVector,
  type Name,
  sizeOf,
  type ValueType,
} from '../ir.js';
import { lowerCall } from './calls.js';
import { evaluateConstant, readNumber } from './constants.js';
import type { Context } from './context.js';
import { lowerBinary, lowerUnary } from './operators.js';
import { mathReplacements, optionalChaining, refusedExpressions, undefinedValue } from './unsupported.js';
import { expectType, literal, requireUnsigned, type Typed, typeBare, unify, type Value } from './values.js';

/** A value of exactly this type, from a bare number or an expression that already has it. */
export function lowerAs(context: Context, node: Node, type: ValueType): Typed {
  return expectType(context, node, lowerExpression(context, node, type), type);
}

/** As `lowerAs`, where Node must hold a word unsigned too. */
export function lowerUnsigned(context: Context, node: Node, type: ValueType): Typed {
  return requireUnsigned(context, node, lowerAs(context, node, type));
}

/** Lowers any expression; `hint` is the type wanted, which only bare numbers take on. */
export function lowerExpression(context: Context, node: Node, hint: ValueType | undefined): Value {
  const { Node } = context.morph;
  const refusal = refusedExpressions[node.getKindName()];
  if (refusal) return context.refuse(node, refusal);
  if (Node.isParenthesizedExpression(node) || Node.isNonNullExpression(node)) {
    return lowerExpression(context, node.getExpression(), hint);
  }
  if (Node.isNumericLiteral(node)) return { kind: 'bare', value: readNumber(node) };
  if (node.getKindName() === 'TrueKeyword' || node.getKindName() === 'FalseKeyword') {
    return literal('bool', node.getKindName() === 'TrueKeyword');
  }
  if (Node.isIdentifier(node)) return lowerIdentifier(context, node);
  if (Node.isPrefixUnaryExpression(node)) return lowerUnary(context, node, hint);
  if (Node.isBinaryExpression(node)) return lowerBinary(context, node, hint);
  if (Node.isConditionalExpression(node)) {
    const condition = lowerAs(context, node.getCondition(), 'bool');
    return lowerSelect(context, condition, node.getWhenTrue(), node.getWhenFalse(), hint);
  }
  if (Node.isCallExpression(node)) {
    const called = lowerCall(context, node, hint);
    if (called.kind === 'bare' || called.type !== 'void') return called as Value;
    return context.fail(node, 'a value', `${context.quote(node)}, which returns nothing`, 'Call it as a statement.');
  }
  if (Node.isElementAccessExpression(node)) return lowerElement(context, node);
  if (Node.isPropertyAccessExpression(node)) return lowerProperty(context, node);
  const kind = context.quote(node);
  return context.fail(node, 'an expression a device can run', kind, 'Write it with numbers, vectors and calls.');
}

function lowerSelect(context: Context, condition: Typed, yes: Source, no: Source, hint: ValueType | undefined): Value {
  const values: [Value, Value] = [lowerExpression(context, yes, hint), lowerExpression(context, no, hint)];
  const [first, second] = unify(context, '? :', [yes, no], values, hint);
  if (first.kind === 'bare' || second.kind === 'bare') {
    const whole = values.every((value) => value.kind === 'bare' && Number.isInteger(value.value));
    if (!whole) {
      return lowerSelect(context, condition, yes, no, 'f32');
    }
    return context.fail(
      yes,
      'a typed value',
      context.quote(yes.getParentOrThrow()),
      'Write `f32(a)`, `i32(a)` or `u32(a)` on one side.',
    );
  }
  return { kind: 'select', type: first.type, condition, yes: first, no: second };
}

function lowerIdentifier(context: Context, node: Identifier): Value {
  const name = node.getText();
  const local = context.local(name);
  if (local) {
    if (isValueType(local.type)) return nameOf(context, name, local.type);
    const hint = local.type.kind === 'lookup' ? `Read it as ${name}(i).` : `Read its elements as ${name}[i]!.`;
    return context.fail(node, 'a scalar or vector', `${name} of type ${describeType(local.type)}`, hint);
  }
  if (name === 'undefined') return context.refuse(node, undefinedValue);
  if (name === 'NaN' || name === 'Infinity') {
    return context.fail(node, 'a finite number', name, 'Write a large finite number such as 3.4e38.');
  }
  const entity = context.outer(name);
  if (entity?.kind === 'variable') {
    const { value, type } = evaluateConstant(context, entity.declaration, node);
    return type ? typeBare(context, node, { kind: 'bare', value }, type) : { kind: 'bare', value };
  }
  if (entity) return context.fail(node, 'a value', `${name}, a function`, `Call it: ${name}(...).`);
  return context.fail(node, 'a parameter, local or top-level constant', name, 'Declare or import it.');
}

export function nameOf<T extends Name['type']>(context: Context, name: string, type: T): Name & { readonly type: T } {
  return context.local(name)?.level === 'static'
    ? { kind: 'name', type, name, static: true }
    : { kind: 'name', type, name };
}

export function lowerElement(context: Context, node: ElementAccessExpression): Element {
  if (node.hasQuestionDotToken()) return context.refuse(node, optionalChaining);
  const written = node.getExpression();
  const local = context.morph.Node.isIdentifier(written) ? context.local(written.getText()) : undefined;
  if (!local || isValueType(local.type) || local.type.kind !== 'array') {
    const received = local ? `${written.getText()} of type ${describeType(local.type)}` : context.quote(written);
    const hint =
      local && isVector(local.type)
        ? 'Read a component as .x, .y, .z or .w.'
        : 'Index an array that is a parameter or a local of this function.';
    return context.fail(written, 'an array to index', received, hint);
  }
  const argument = node.getArgumentExpression();
  if (!argument) return context.fail(node, 'an index', 'none', 'Write one.');
  const index = lowerIndex(context, argument);
  const array = nameOf(context, written.getText(), local.type);
  return { kind: 'element', type: local.type.element, array, index, at: context.positionOf(node) };
}

function lowerIndex(context: Context, node: Node): Typed {
  const index = lowerExpression(context, node, 'u32');
  if (index.kind === 'bare') return typeBare(context, node, index, 'u32');
  if (isInteger(index.type)) return requireUnsigned(context, node, index);
  return expectType(context, node, index, 'u32');
}

function lowerProperty(context: Context, node: PropertyAccessExpression): Value {
  if (node.hasQuestionDotToken()) return context.refuse(node, optionalChaining);
  const written = node.getExpression();
  const member = node.getName();
  if (written.getText() === 'Math') {
    const replacement = mathReplacements[member];
    const hint = replacement ? `Write ${replacement}.` : 'Write it with the functions of the device library.';
    return context.fail(node, 'the device library', node.getText(), hint);
  }
  const local = context.morph.Node.isIdentifier(written) ? context.local(written.getText()) : undefined;
  if (local && !isValueType(local.type)) {
    if (local.type.kind === 'array' && member === 'length') {
      const { length } = local.type;
      return length.type === 'u32' ? (length as Typed) : { kind: 'convert', type: 'u32', operand: length };
    }
    const hint = local.type.kind === 'array' ? 'An array has only .length.' : `Read it as ${written.getText()}(i).`;
    return context.fail(node.getNameNode(), 'a known property', `.${member} of ${describeType(local.type)}`, hint);
  }
  const vector = lowerExpression(context, written, undefined);
  const axes = vector.kind !== 'bare' && isVector(vector.type) ? 'xyzw'.slice(0, sizeOf(vector.type)) : '';
  if (vector.kind === 'bare' || member.length !== 1 || !axes.includes(member)) {
    const of = vector.kind === 'bare' ? 'a number' : vector.type;
    const hint = axes
      ? `A ${of} has ${[...axes].map((axis) => `.${axis}`).join(' ')}.`
      : 'Only vectors and arrays have properties.';
    return context.fail(node.getNameNode(), 'a known property', `.${member} of ${of}`, hint);
  }
  const component = vector.type.endsWith('f') ? 'f32' : vector.type.endsWith('i') ? 'i32' : 'u32';
  return { kind: 'member', type: component, vector, member: member as 'x' | 'y' | 'z' | 'w' };
}
