/** Bare numbers, the types they take, and the rule that two types never mix silently. */
import type { Node } from 'ts-morph';
import { f16 } from '../../dsl/device.js';
import { describeType, type Expression, type ScalarName, type Type, type ValueType } from '../ir.js';
import type { Context } from './context.js';
import { conversions } from './library.js';

/** A number without a type yet: a literal, or arithmetic of literals. */
export interface Bare {
  readonly kind: 'bare';
  readonly value: number;
}
export type Typed = Expression & { readonly type: ValueType };
export type Value = Typed | Bare;

export function literal(type: ScalarName, value: number | boolean): Typed {
  return { kind: 'literal', type, value };
}

/** The bare number as a literal of the type, or a fault when the type cannot hold it. */
export function typeBare(context: Context, node: Node, bare: Bare, type: ValueType): Typed {
  const { value } = bare;
  if (type === 'f32' || type === 'f16') {
    const limit = type === 'f32' ? 3.4028234663852886e38 : 65504;
    if (type === 'f16' && Math.abs(value) <= limit && f16(value) !== value) {
      return context.fail(node, 'a number that a half holds exactly', String(value), `Write \`f16(${value})\`.`);
    }
    if (Math.abs(value) <= limit) return literal(type, value);
    return context.fail(node, `a finite ${type}`, String(value), `Stay within ${limit}.`);
  }
  if (type === 'i32' || type === 'u32') {
    const [low, high] = type === 'i32' ? [-(2 ** 31), 2 ** 31 - 1] : [0, 2 ** 32 - 1];
    if (Number.isInteger(value) && value >= low && value <= high) return literal(type, value);
    return context.fail(
      node,
      `a whole number in ${low} .. ${high} (${type})`,
      String(value),
      `Write another number or another type.`,
    );
  }
  return context.fail(
    node,
    type,
    `the number ${value}`,
    type === 'bool' ? 'Write a comparison.' : `Write ${type}(...).`,
  );
}

export function conversionHint(context: Context, node: Node, from: Type | 'void', to: Type): string {
  const written = context.quote(node).slice(1, -1);
  if (to === 'bool') return `Write \`${written} !== 0\`.`;
  if (typeof to === 'string' && conversions.has(to) && typeof from === 'string') {
    if (conversions.has(from)) return `Write \`${to}(${written})\`.`;
    if (from === 'bool')
      return `Write \`${to === 'f32' || to === 'f16' ? `${written} ? 1 : 0` : `${to}(${written})`}\`.`;
  }
  return `Pass a value of type ${describeType(to)}.`;
}

export function expectType(context: Context, node: Node, value: Value, type: ValueType): Typed {
  if (value.kind === 'bare') return typeBare(context, node, value, type);
  if (value.type === type) return value;
  return context.fail(
    node,
    type,
    `${context.quote(node)}, a value of type ${value.type}`,
    conversionHint(context, node, value.type, type),
  );
}

/** Gives both operands one type: that of the typed one, else the hint. */
export function unify(
  context: Context,
  operator: string,
  nodes: readonly [Node, Node],
  values: readonly [Value, Value],
  hint: ValueType | undefined,
): [Typed, Typed] | [Bare, Bare] {
  const [left, right] = values;
  if (left.kind === 'bare' && right.kind === 'bare') {
    if (hint === undefined) return [left, right];
    return [typeBare(context, nodes[0], left, hint), typeBare(context, nodes[1], right, hint)];
  }
  if (left.kind === 'bare') return [typeBare(context, nodes[0], left, (right as Typed).type), right as Typed];
  if (right.kind === 'bare') return [left, typeBare(context, nodes[1], right, left.type)];
  if (left.type === right.type) return [left, right];
  // Towards the float: an integer read as a float is what mixed arithmetic nearly always means.
  const converted = right.type === 'f32' ? nodes[0] : nodes[1];
  const [from, to] = converted === nodes[0] ? [left.type, right.type] : [right.type, left.type];
  return context.fail(
    converted,
    `one type on both sides of ${operator}`,
    `${left.type} and ${right.type}`,
    conversionHint(context, converted, from, to),
  );
}

/** How many low bits of a word can be set; Node shows bit 31 as a minus sign unless the source says `u32(...)`. */
function reach(value: Expression): number {
  if (value.kind === 'literal') return Math.ceil(Math.log2(Number(value.value) + 1));
  if (value.kind !== 'binary') return 32;
  const left = reach(value.left);
  const by = value.right.kind === 'literal' ? Number(value.right.value) : undefined;
  if (value.operator === '&') return Math.min(left, reach(value.right));
  if (value.operator === '|' || value.operator === '^') return Math.max(left, reach(value.right));
  if (value.operator === '<<') return by === undefined ? 32 : Math.min(32, left + by);
  if (value.operator === '>>') return by === undefined ? left : Math.max(0, left - by);
  return 32;
}

const signedOperators: ReadonlySet<string> = new Set(['&', '|', '^', '<<']);

/** Whether Node may hold this u32 as a negative number, where a device holds it unsigned. */
export function maybeSigned(context: Context, value: Expression): boolean {
  if (value.type !== 'u32' || context.wrapped.has(value)) return false;
  if (value.kind === 'select') return maybeSigned(context, value.yes) || maybeSigned(context, value.no);
  const bits = value.kind === 'unary' || (value.kind === 'binary' && signedOperators.has(value.operator));
  return bits && reach(value) > 31 && context.levelOf(value) !== 'static';
}

/** Called wherever the sign of a word matters. */
export function requireUnsigned(context: Context, node: Node, value: Typed): Typed {
  if (!maybeSigned(context, value)) return value;
  return context.fail(
    node,
    'a word wrapped in u32(...)',
    `${context.quote(node)}, which is negative in Node when bit 31 is set`,
    `Write \`u32(${context
      .quote(node)
      .slice(1, -1)
      .replace(/^\((.*)\)$/, '$1')})\`.`,
  );
}
