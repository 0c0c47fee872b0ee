import type {
  BinaryExpression,
  Identifier,
  IfStatement,
  Node,
  Expression as Source,
  VariableDeclaration,
} from 'ts-morph';
import {
  type ArrayType,
  type Assign,
  type AssignmentOperator,
  describeType,
  isValueType,
  type Name,
  type Statement,
  type ValueType,
} from '../ir.js';
import { lowerCall } from './calls.js';
import type { Context } from './context.js';
import { lowerAs, lowerElement, lowerExpression, lowerUnsigned, nameOf } from './expressions.js';
import { isVectorName, zerosElements } from './library.js';
import { lowerFor } from './loops.js';
import { lowerCompound } from './operators.js';
import { lowerAnnotation } from './types.js';
import { destructuring, refusedOperators, refusedStatements } from './unsupported.js';
import { literal, maybeSigned, requireUnsigned, type Typed } from './values.js';

export function lowerStatements(context: Context, nodes: readonly Node[]): Statement[] {
  return nodes.flatMap((node) => lowerStatement(context, node));
}

/** The statements of a branch or loop body, in a scope of their own. */
export function lowerBody(context: Context, node: Node): Statement[] {
  const { Node } = context.morph;
  return context.within(() => lowerStatements(context, Node.isBlock(node) ? node.getStatements() : [node]));
}

function lowerStatement(context: Context, node: Node): Statement[] {
  const { Node } = context.morph;
  const refusal = refusedStatements[node.getKindName()];
  if (refusal) return context.refuse(node, refusal);
  if (Node.isEmptyStatement(node)) return [];
  if (Node.isBlock(node)) return [{ kind: 'block', body: lowerBody(context, node) }];
  if (Node.isVariableStatement(node)) {
    const keyword = node.getDeclarationKind();
    if (keyword !== 'const' && keyword !== 'let') {
      return context.fail(node, 'const or let', keyword, 'Write const, or let for what changes.');
    }
    return node.getDeclarations().map((declaration) => lowerDeclaration(context, declaration, keyword === 'let'));
  }
  if (Node.isIfStatement(node)) return [lowerIf(context, node)];
  if (Node.isForStatement(node)) return [lowerFor(context, node)];
  if (Node.isReturnStatement(node)) return [lowerReturn(context, node, node.getExpression())];
  if (Node.isExpressionStatement(node)) return [lowerExpressionStatement(context, node.getExpression())];
  return context.fail(
    node,
    'a statement a device can run',
    context.quote(node),
    'Write const, let, =, if, for or return.',
  );
}

function lowerIf(context: Context, node: IfStatement): Statement {
  const condition = lowerAs(context, node.getExpression(), 'bool');
  const whenTrue = lowerBody(context, node.getThenStatement());
  const alternative = node.getElseStatement();
  const whenFalse = alternative ? lowerBody(context, alternative) : [];
  return { kind: 'if', condition, whenTrue, whenFalse, at: context.positionOf(node) };
}

function lowerReturn(context: Context, node: Node, value: Source | undefined): Statement {
  const at = context.positionOf(node);
  if (value === undefined) {
    if (context.returns === 'void') return { kind: 'return', at };
    return context.fail(node, `a value of type ${context.returns}`, 'an empty return', 'Return a value on every path.');
  }
  if (context.returns === 'void') {
    return context.fail(
      value,
      'an empty return',
      context.quote(value),
      'Declare what the function returns instead of void.',
    );
  }
  return { kind: 'return', value: lowerUnsigned(context, value, context.returns), at };
}

function lowerDeclaration(context: Context, node: VariableDeclaration, mutable: boolean): Statement {
  const { Node } = context.morph;
  const nameNode = node.getNameNode();
  if (!Node.isIdentifier(nameNode)) return context.refuse(nameNode, destructuring);
  const name = nameNode.getText();
  const initializer = node.getInitializer();
  if (!initializer) {
    return context.fail(node, 'an initial value', `${name} without one`, `Write \`let ${name}: f32 = 0;\`.`);
  }
  const at = context.positionOf(node);
  const array = lowerZeros(context, initializer);
  if (array) {
    if (mutable) {
      return context.fail(
        node,
        'const for an array',
        `let ${name}`,
        'Write const; its elements can still be assigned.',
      );
    }
    context.declare(node, name, { type: array, role: 'const', level: 'dynamic' });
    return { kind: 'declare', name, type: array, mutable: true, at };
  }
  const value = lowerInitializer(context, node, name, initializer, mutable ? 'let' : 'const');
  const level = mutable ? 'dynamic' : context.levelOf(value);
  context.declare(node, name, { type: value.type, role: mutable ? 'let' : 'const', level });
  return { kind: 'declare', name, type: value.type, mutable, value, at };
}

function lowerInitializer(
  context: Context,
  node: VariableDeclaration,
  name: string,
  initializer: Source,
  keyword: string,
): Typed {
  const annotation = node.getTypeNode();
  if (annotation) {
    const { type } = lowerAnnotation(context, annotation);
    if (isValueType(type)) return lowerUnsigned(context, initializer, type);
    const hint = "Write `const values = zeros('f32', 8);`, or use the array or table under its own name.";
    return context.fail(annotation, 'a scalar or vector type', describeType(type), hint);
  }
  const value = lowerExpression(context, initializer, undefined);
  if (value.kind !== 'bare') return requireUnsigned(context, initializer, value);
  if (!Number.isInteger(value.value)) return literal('f32', value.value);
  return context.fail(
    node,
    `a type for ${name}`,
    `the bare number ${value.value}`,
    `Write \`${keyword} ${name}: u32 = ${value.value}\`, or f32 or i32 for the type you mean.`,
  );
}

/** `zeros(kind, length)`: the array type it makes; undefined for any other initialiser. */
function lowerZeros(context: Context, node: Source): ArrayType | undefined {
  const { Node } = context.morph;
  if (!Node.isCallExpression(node)) return undefined;
  const entity = context.outer(node.getExpression().getText());
  if (entity?.kind !== 'library' || entity.name !== 'zeros') return undefined;
  const [kind, length] = node.getArguments();
  const element = kind && Node.isStringLiteral(kind) ? kind.getLiteralValue() : '';
  if (!kind || !length || !zerosElements.has(element)) {
    const received = kind ? context.quote(kind) : 'nothing';
    return context.fail(kind ?? node, 'an element kind and a length', received, "Write zeros('f32', 8).");
  }
  const value = lowerExpression(context, length, 'u32');
  const typed = value.kind === 'bare' ? lowerAs(context, length, 'u32') : value;
  if (context.levelOf(typed) !== 'static' || (typed.type !== 'u32' && typed.type !== 'i32')) {
    const hint = 'Write a literal, a Static parameter, or arithmetic of them.';
    return context.fail(length, 'a static length', context.quote(length), hint);
  }
  const elementType = isVectorName(element) ? element : (element as ValueType);
  return { kind: 'array', element: elementType, length: typed };
}

function lowerExpressionStatement(context: Context, node: Source): Statement {
  const { Node } = context.morph;
  const at = context.positionOf(node);
  if (Node.isParenthesizedExpression(node)) return lowerExpressionStatement(context, node.getExpression());
  if (Node.isBinaryExpression(node) && node.getOperatorToken().getText().endsWith('='))
    return lowerAssignment(context, node);
  if (
    Node.isPostfixUnaryExpression(node) ||
    (Node.isPrefixUnaryExpression(node) && /^(\+\+|--)/.test(node.getText()))
  ) {
    const target = lowerTarget(context, node.getOperand());
    const operator = node.getText().includes('++') ? '+=' : '-=';
    if (target.type !== 'f32' && target.type !== 'i32' && target.type !== 'u32') {
      return context.fail(node, 'a number to count', describeType(target.type), 'Assign it instead.');
    }
    return { kind: 'assign', target, operator, value: literal(target.type, 1), at };
  }
  if (Node.isCallExpression(node)) {
    const call = lowerCall(context, node, undefined);
    if (call.kind === 'call') return { kind: 'call', call, at };
    return context.fail(
      node,
      'a statement',
      `${context.quote(node)}, whose value is dropped`,
      'Assign it or remove it.',
    );
  }
  // Lowering it as a value says what is wrong with it, where it is something no device can run at all.
  lowerExpression(context, node, undefined);
  return context.fail(node, 'a statement', context.quote(node), 'Assign it or remove it.');
}

function lowerTarget(context: Context, node: Source): Assign['target'] & { readonly type: ValueType } {
  const { Node } = context.morph;
  if (Node.isNonNullExpression(node) || Node.isParenthesizedExpression(node))
    return lowerTarget(context, node.getExpression());
  if (Node.isElementAccessExpression(node)) return lowerElement(context, node);
  if (Node.isPropertyAccessExpression(node)) {
    const hint = 'Vectors and lengths do not change: build a new vector, `vec2f(x, a.y)`.';
    return context.fail(node, 'a local or an array element to assign', context.quote(node), hint);
  }
  if (Node.isArrayLiteralExpression(node) || Node.isObjectLiteralExpression(node))
    return context.refuse(node, destructuring);
  if (Node.isIdentifier(node)) return lowerNameTarget(context, node);
  return context.fail(node, 'a local or an array element to assign', context.quote(node), 'Assign a let or x[i].');
}

function lowerNameTarget(context: Context, node: Identifier): Name & { readonly type: ValueType } {
  const name = node.getText();
  const local = context.local(name);
  if (!local) {
    const hint = 'Device functions change only their locals and array parameters; return the value.';
    return context.fail(node, 'a local to assign', `${name}, which is not in this function`, hint);
  }
  if (!isValueType(local.type)) {
    return context.fail(
      node,
      'an array element to assign',
      `${name} of type ${describeType(local.type)}`,
      'Copy it element by element.',
    );
  }
  if (local.role === 'let') return nameOf(context, name, local.type);
  const hint = local.role === 'const' ? 'Declare it with let.' : `Copy it first: \`let copy = ${name};\`.`;
  return context.fail(node, 'a let to assign', `${name}, a ${local.role}`, hint);
}

function lowerAssignment(context: Context, node: BinaryExpression): Statement {
  const written = node.getOperatorToken().getText();
  const refusal = refusedOperators[written];
  if (refusal) return context.refuse(node, refusal);
  if (['==', '===', '!==', '<=', '>='].includes(written)) {
    return context.fail(
      node,
      'a statement',
      `a comparison with ${written}`,
      'Write = to assign, or put it into an if.',
    );
  }
  const target = lowerTarget(context, node.getLeft());
  const at = context.positionOf(node);
  const guard = (value: Typed): Typed =>
    target.kind === 'element' ? value : requireUnsigned(context, node.getRight(), value);
  if (written === '=') {
    const value = guard(lowerAs(context, node.getRight(), target.type));
    return { kind: 'assign', target, operator: '=', value, at };
  }
  const operator = written.slice(0, -1);
  const whole = lowerCompound(context, node, operator, node.getLeft(), node.getRight(), target.type);
  if (whole.kind !== 'binary') return context.fail(node, 'an assignment', context.quote(node), 'Write it with =.');
  if (target.kind === 'name') requireUnsignedResult(context, node, operator, whole);
  return { kind: 'assign', target, operator: `${whole.operator}=` as AssignmentOperator, value: whole.right, at };
}

function requireUnsignedResult(context: Context, node: BinaryExpression, operator: string, whole: Typed): void {
  const [left, right] = [node.getLeft().getText(), node.getRight().getText()];
  if (!maybeSigned(context, whole)) return;
  context.fail(
    node,
    'a word wrapped in u32(...)',
    `${context.quote(node)}, which is negative in Node when bit 31 is set`,
    `Write \`${left} = u32(${left} ${operator} ${/^[\w.]+(\(.*\))?$/.test(right) ? right : `(${right})`})\`.`,
  );
}
