/** From type annotations to types of the intermediate form. */
import type { Node, TypeNode, TypeReferenceNode } from 'ts-morph';
import { describeType, type Expression, isInteger, isValueType, type Type, type ValueType } from '../ir.js';
import { evaluateConstant } from './constants.js';
import type { Context } from './context.js';
import { findEntity } from './files.js';
import { isScalarName, isVectorName } from './library.js';

const scalarHint = 'Write f32, f16, i32, u32, bool or a vector such as vec4f, imported from kvforge.';

export interface Annotation {
  readonly type: Type;
  readonly static: boolean;
}

export function lowerAnnotation(context: Context, node: TypeNode): Annotation {
  const { Node } = context.morph;
  if (Node.isParenthesizedTypeNode(node)) return lowerAnnotation(context, node.getTypeNode());
  const kind = node.getKindName();
  if (kind === 'BooleanKeyword') return { type: 'bool', static: false };
  if (kind === 'ArrayType') {
    const element = excerptOfArray(node);
    return context.fail(node, 'a length', context.quote(node), `Write FixedArray<${element}, 8>.`);
  }
  if (kind === 'FunctionType') {
    return context.fail(node, 'a device type', 'a function type', 'Write Lookup<f32> for a table read by index.');
  }
  if (Node.isTypeReference(node)) return lowerReference(context, node);
  return context.fail(node, 'a device type', context.quote(node), scalarHint);
}

function excerptOfArray(node: Node): string {
  return node
    .getText()
    .replace(/^readonly\s+/, '')
    .replace(/\[\]$/, '');
}

function lowerReference(context: Context, node: TypeReferenceNode): Annotation {
  const name = node.getTypeName().getText();
  const entity = findEntity(context.session.project, node.getSourceFile(), name);
  if (!entity) return context.fail(node, 'a device type', context.quote(node), scalarHint);
  if (entity.kind === 'type') {
    const aliased = entity.declaration.getTypeNode();
    if (aliased && entity.declaration.getTypeParameters().length === 0) return lowerAnnotation(context, aliased);
    return context.fail(node, 'a device type', context.quote(node), 'Write the type out.');
  }
  if (entity.kind !== 'library') return context.fail(node, 'a device type', context.quote(node), scalarHint);
  const inner = node.getTypeArguments();
  if (isScalarName(entity.name) || isVectorName(entity.name)) return { type: entity.name, static: false };
  if (entity.name === 'Static' && inner[0]) {
    const type = lowerAnnotation(context, inner[0]).type;
    if (isInteger(type)) return { type, static: true };
    return context.fail(
      node,
      'Static<u32> or Static<i32>',
      context.quote(node),
      'Pass other numbers as plain parameters.',
    );
  }
  if (entity.name === 'Lookup' && inner[0]) {
    return { type: { kind: 'lookup', element: lowerElement(context, inner[0]) }, static: false };
  }
  if (entity.name === 'FixedArray' && inner[0] && inner[1]) {
    const element = lowerElement(context, inner[0]);
    return { type: { kind: 'array', element, length: lowerLength(context, inner[1]) }, static: false };
  }
  return context.fail(node, 'a device type', context.quote(node), scalarHint);
}

function lowerElement(context: Context, node: TypeNode): ValueType {
  const { type } = lowerAnnotation(context, node);
  if (isValueType(type)) return type;
  return context.fail(node, 'a scalar or vector element', describeType(type), 'Flatten it into one array.');
}

function lowerLength(context: Context, node: TypeNode): Expression {
  const { Node } = context.morph;
  const hint = 'Write a whole number, or `typeof n` with n a Static parameter of this function.';
  if (Node.isLiteralTypeNode(node)) {
    const value = Number(node.getText());
    if (Number.isInteger(value) && value > 0) return { kind: 'literal', type: 'u32', value };
  }
  if (Node.isTypeQuery(node)) {
    const name = node.getExprName().getText();
    const local = context.local(name);
    if (local?.level === 'static' && isInteger(local.type))
      return { kind: 'name', type: local.type, name, static: true };
    const entity = context.outer(name);
    if (!local && entity?.kind === 'variable') {
      const { value } = evaluateConstant(context, entity.declaration, node);
      if (Number.isInteger(value) && value > 0) return { kind: 'literal', type: 'u32', value };
    }
  }
  return context.fail(node, 'an array length', context.quote(node), hint);
}
