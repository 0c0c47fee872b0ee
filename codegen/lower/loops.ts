/** `for` loops whose trip count is known when the kernel is generated, or at each turn of such a loop. */
import type { ForStatement, Node, Expression as Source } from 'ts-morph';
import { fold } from '../fold.js';
import { type Expression, type For, isInteger } from '../ir.js';
import { endlessLoop, tripCount } from '../ranges.js';
import type { Context } from './context.js';
import { lowerAs, lowerExpression, lowerUnsigned } from './expressions.js';
import { lowerBody } from './statements.js';
import { lowerAnnotation } from './types.js';
import { literal, type Value } from './values.js';

const form = 'Write `for (let i = 0; i < n; i++)`.';

interface Head {
  readonly variable: string;
  readonly start: Source;
  readonly annotated: 'i32' | 'u32' | undefined;
  readonly node: Node;
}

export function lowerFor(context: Context, node: ForStatement): For {
  const head = readHead(context, node);
  const [comparison, bound] = readCondition(context, node, head.variable);
  const [direction, step] = readStep(context, node, head.variable);
  const upward = comparison === '<' || comparison === '<=';
  if (upward !== (direction === 'up')) {
    const received = `${comparison} with ${direction === 'up' ? 'a growing' : 'a shrinking'} ${head.variable}`;
    return context.fail(node, 'a loop that ends', received, 'Pair < with += and > with -=.');
  }
  const type = chooseType(context, head, bound, upward);
  const start = lowerBound(context, head.start, type);
  const limit = lowerBound(context, bound, type);
  if (type === 'u32' && comparison === '>=' && limit.kind === 'literal' && limit.value === 0) {
    const hint = `Drop the u32: a loop that counts down is an i32, read as u32(${head.variable}).`;
    return context.fail(node, 'a loop that ends', `a u32 that is always at least 0`, hint);
  }
  const amount = step ? lowerStep(context, step, type) : literal(type, 1);
  const at = context.positionOf(node);
  const known = new Map<string, Expression>();
  const numbers: For = {
    ...{ kind: 'for', variable: head.variable, type, comparison, body: [], at },
    ...{ start: fold(start, known), bound: fold(limit, known), step: fold(amount, known) },
  };
  // With static parameters, the numbers are known where the function is specialised.
  const endless = tripCount(numbers) === undefined ? undefined : endlessLoop(numbers, new Map());
  if (endless) return context.fail(node, 'a loop that ends', endless.received, endless.hint);
  const body = context.within(() => {
    context.declare(head.node, head.variable, { type, role: 'loop variable', level: 'loop' });
    return lowerBody(context, node.getStatement());
  });
  return { kind: 'for', variable: head.variable, type, start, comparison, bound: limit, step: amount, body, at };
}

function readHead(context: Context, node: ForStatement): Head {
  const { Node } = context.morph;
  const initializer = node.getInitializer();
  if (!initializer || !Node.isVariableDeclarationList(initializer) || initializer.getDeclarations().length !== 1) {
    const received = initializer ? context.quote(initializer) : 'none';
    return context.fail(initializer ?? node, 'one loop variable', received, form);
  }
  const declaration = initializer.getDeclarations()[0]!;
  const start = declaration.getInitializer();
  if (!start || initializer.getDeclarationKind() !== 'let') {
    return context.fail(initializer, 'one loop variable', context.quote(initializer), form);
  }
  const annotation = declaration.getTypeNode();
  const type = annotation && lowerAnnotation(context, annotation).type;
  if (type && !isInteger(type)) {
    return context.fail(annotation, 'u32 or i32 for a loop variable', context.quote(annotation), form);
  }
  return { variable: declaration.getName(), start, annotated: type, node: declaration };
}

function readCondition(context: Context, node: ForStatement, variable: string): [For['comparison'], Source] {
  const condition = node.getCondition();
  if (condition && context.morph.Node.isBinaryExpression(condition) && condition.getLeft().getText() === variable) {
    const operator = condition.getOperatorToken().getText();
    if (operator === '<' || operator === '<=' || operator === '>' || operator === '>=') {
      return [operator, condition.getRight()];
    }
  }
  const received = condition ? context.quote(condition) : 'none';
  return context.fail(condition ?? node, `a condition such as ${variable} < n`, received, form);
}

function readStep(context: Context, node: ForStatement, variable: string): ['up' | 'down', Source | undefined] {
  const { Node } = context.morph;
  const step = node.getIncrementor();
  const counts = step && (Node.isPostfixUnaryExpression(step) || Node.isPrefixUnaryExpression(step));
  if (counts && step.getOperand().getText() === variable && /\+\+|--/.test(step.getText())) {
    return [step.getText().includes('++') ? 'up' : 'down', undefined];
  }
  if (step && Node.isBinaryExpression(step) && step.getLeft().getText() === variable) {
    const operator = step.getOperatorToken().getText();
    if (operator === '+=' || operator === '-=') return [operator === '+=' ? 'up' : 'down', step.getRight()];
  }
  const received = step ? context.quote(step) : 'none';
  const hint = `${form.slice(0, -1)}, or step by \`${variable} += 2\`; for powers of two, loop over the exponent.`;
  return context.fail(step ?? node, `${variable}++ or ${variable} += c`, received, hint);
}

function chooseType(context: Context, head: Head, bound: Source, upward: boolean): 'i32' | 'u32' {
  if (head.annotated) return head.annotated;
  const values: Value[] = [lowerExpression(context, head.start, undefined), lowerExpression(context, bound, undefined)];
  for (const value of values) {
    if (value.kind !== 'bare' && isInteger(value.type)) return value.type;
  }
  const negative = values.some((value) => value.kind === 'bare' && value.value < 0);
  return negative || !upward ? 'i32' : 'u32';
}

function lowerBound(context: Context, node: Source, type: 'i32' | 'u32'): Expression {
  const value = lowerUnsigned(context, node, type);
  if (context.levelOf(value) !== 'dynamic') return value;
  return context.fail(
    node,
    'a static loop bound',
    `${context.quote(node)}, known only when the kernel runs`,
    'Loop to a literal, a Static parameter or an array length, and guard the body with an if.',
  );
}

function lowerStep(context: Context, node: Source, type: 'i32' | 'u32'): Expression {
  const value = lowerAs(context, node, type);
  const positive = value.kind !== 'literal' || Number(value.value) > 0;
  if (context.levelOf(value) === 'static' && positive) return value;
  return context.fail(
    node,
    'a static step above 0',
    context.quote(node),
    'Write a whole number or a Static parameter.',
  );
}
