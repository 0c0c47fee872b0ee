/** One device function: its header, which callers need first, then its body. */
import type { FunctionDeclaration, ParameterDeclaration } from 'ts-morph';
import { describeType, type FunctionIr, isValueType, type Parameter, type Statement, type ValueType } from '../ir.js';
import { Context, type Header, type Session } from './context.js';
import { lowerStatements } from './statements.js';
import { lowerAnnotation } from './types.js';
import { asyncFunction, destructuring, generatorFunction } from './unsupported.js';

export function isDevice(declaration: FunctionDeclaration): boolean {
  return /^['"]device['"];?$/.test(declaration.getStatements()[0]?.getText() ?? '');
}

export interface Opened {
  readonly context: Context;
  readonly header: Header;
}

export function openFunction(session: Session, declaration: FunctionDeclaration): Opened {
  const context = new Context(session, declaration);
  const name = declaration.getName();
  if (!name) {
    return context.fail(
      declaration,
      'a named function',
      'one without a name',
      'Name it: callers and kernels need one.',
    );
  }
  if (declaration.isAsync()) return context.refuse(declaration, asyncFunction);
  if (declaration.isGenerator()) return context.refuse(declaration, generatorFunction);
  if (declaration.getTypeParameters()[0]) {
    const hint = 'Write one function per type, or a Static parameter for sizes.';
    return context.fail(declaration.getTypeParameters()[0]!, 'a function without type parameters', 'generics', hint);
  }
  const params = declaration.getParameters();
  // Static parameters first: an array length may name one that comes later in the list.
  const statics = params.filter((param) => param.getTypeNode()?.getText().startsWith('Static<'));
  const typed = new Map<ParameterDeclaration, Parameter>();
  for (const param of [...statics, ...params.filter((param) => !statics.includes(param))]) {
    typed.set(param, lowerParameter(context, param));
  }
  context.returns = lowerReturns(context, declaration);
  return { context, header: { params: params.map((param) => typed.get(param)!), returns: context.returns } };
}

function lowerParameter(context: Context, node: ParameterDeclaration): Parameter {
  const name = node.getName();
  if (!context.morph.Node.isIdentifier(node.getNameNode())) return context.refuse(node, destructuring);
  if (node.isRestParameter()) {
    return context.fail(node, 'a fixed list of parameters', `...${name}`, 'Write FixedArray<f32, 8> for an array.');
  }
  if (node.isOptional() || node.hasInitializer()) {
    const received = `an optional ${name}`;
    return context.fail(node, 'a parameter that is always passed', received, 'Remove the ? or the default; pass it.');
  }
  const annotation = node.getTypeNode();
  if (!annotation) return context.fail(node, `a type for ${name}`, 'none', `Write \`${name}: f32\`.`);
  const { type, static: isStatic } = lowerAnnotation(context, annotation);
  context.declare(node, name, { type, role: 'parameter', level: isStatic ? 'static' : 'dynamic' });
  return { name, type, static: isStatic };
}

function lowerReturns(context: Context, declaration: FunctionDeclaration): ValueType | 'void' {
  const annotation = declaration.getReturnTypeNode();
  if (!annotation) {
    const name = declaration.getName() ?? '';
    const node = declaration.getNameNode() ?? declaration;
    return context.fail(node, `a return type for ${name}`, 'none', 'Write `: f32`, or `: void`, after the parameters.');
  }
  if (annotation.getText() === 'void') return 'void';
  const { type, static: isStatic } = lowerAnnotation(context, annotation);
  if (isValueType(type) && !isStatic) return type;
  const hint = 'Take the array to fill as a parameter and return void.';
  return context.fail(annotation, 'a scalar, a vector or void', isStatic ? 'Static' : describeType(type), hint);
}

function alwaysReturns(statements: readonly Statement[]): boolean {
  return statements.some(
    (statement) =>
      statement.kind === 'return' ||
      (statement.kind === 'block' && alwaysReturns(statement.body)) ||
      (statement.kind === 'if' && alwaysReturns(statement.whenTrue) && alwaysReturns(statement.whenFalse)),
  );
}

/** The first sentence of the JSDoc, on one line. */
function firstSentence(declaration: FunctionDeclaration): string | undefined {
  const text = declaration.getJsDocs()[0]?.getDescription().replace(/\s+/g, ' ').trim();
  if (!text) return undefined;
  return /^.*?[.!?](?=\s|$)/.exec(text)?.[0] ?? text;
}

export function lowerFunction({ context, header }: Opened): FunctionIr {
  const { declaration, session } = context;
  const body = context.within(() => lowerStatements(context, declaration.getStatements().slice(1)));
  if (header.returns !== 'void' && !alwaysReturns(body)) {
    const node = declaration.getNameNode() ?? declaration;
    const received = 'a path that ends without one';
    context.fail(node, `a return of ${header.returns} on every path`, received, 'End the function with a return.');
  }
  const doc = firstSentence(declaration);
  return {
    name: declaration.getNameOrThrow(),
    file: session.labelOf(declaration.getSourceFile().getFilePath()),
    position: context.positionOf(declaration),
    ...(doc === undefined ? {} : { doc }),
    params: header.params,
    returns: header.returns,
    body,
  };
}
