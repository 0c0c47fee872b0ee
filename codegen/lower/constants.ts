/** Module-level `const` numbers, folded where they are used. */
import type { Node, Expression as Source, VariableDeclaration } from 'ts-morph';
import type { ScalarName } from '../ir.js';
import type { Context } from './context.js';
import { findEntity } from './files.js';
import { isScalarName } from './library.js';

export interface Constant {
  readonly value: number;
  /** The annotated scalar; without one the number adapts to where it is used. */
  readonly type?: ScalarName;
}

export function evaluateConstant(context: Context, declaration: VariableDeclaration, use: Node): Constant {
  const keyword = declaration.getVariableStatement()?.getDeclarationKind();
  if (keyword !== 'const') {
    const name = declaration.getName();
    return context.fail(
      use,
      'parameters, locals and top-level constants',
      `${name}, a top-level ${keyword ?? 'variable'}`,
      `Pass ${name} as a parameter, or declare it const.`,
    );
  }
  const initializer = declaration.getInitializer();
  const value = initializer && evaluate(context, initializer);
  if (value === undefined) {
    return context.fail(
      use,
      'a top-level constant that is a number',
      declaration.getName(),
      'Write it as a number, or pass what it holds as a parameter or a Lookup.',
    );
  }
  const annotation = declaration.getTypeNode()?.getText();
  return annotation && isScalarName(annotation) ? { value, type: annotation } : { value };
}

/** Not ts-morph's own reading, which takes 1e-30 for 1. */
export function readNumber(node: Node): number {
  return Number(node.getText().replaceAll('_', ''));
}

function evaluate(context: Context, node: Source): number | undefined {
  const { Node } = context.morph;
  if (Node.isNumericLiteral(node)) return readNumber(node);
  if (Node.isParenthesizedExpression(node) || Node.isAsExpression(node)) return evaluate(context, node.getExpression());
  if (Node.isPrefixUnaryExpression(node) && node.getText().startsWith('-')) {
    const operand = evaluate(context, node.getOperand());
    return operand === undefined ? undefined : -operand;
  }
  if (Node.isIdentifier(node)) {
    const entity = findEntity(context.session.project, node.getSourceFile(), node.getText());
    return entity?.kind === 'variable' ? evaluateConstant(context, entity.declaration, node).value : undefined;
  }
  if (Node.isPropertyAccessExpression(node) && node.getExpression().getText() === 'Math') {
    const value: unknown = Math[node.getName() as keyof Math];
    return typeof value === 'number' ? value : undefined;
  }
  if (!Node.isBinaryExpression(node)) return undefined;
  const left = evaluate(context, node.getLeft());
  const right = evaluate(context, node.getRight());
  if (left === undefined || right === undefined) return undefined;
  return combineNumbers(node.getOperatorToken().getText(), left, right);
}

/** Arithmetic of bare numbers as JavaScript does it. */
export function combineNumbers(operator: string, left: number, right: number): number | undefined {
  switch (operator) {
    case '+':
      return left + right;
    case '-':
      return left - right;
    case '*':
      return left * right;
    case '/':
      return left / right;
    case '%':
      return left % right;
    case '**':
      return left ** right;
    case '<<':
      return left << right;
    case '>>':
      return left >> right;
    case '>>>':
      return left >>> right;
    case '&':
      return left & right;
    case '|':
      return left | right;
    case '^':
      return left ^ right;
    default:
      return undefined;
  }
}
