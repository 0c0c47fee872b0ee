/** Calls: conversions, the device library, tables, and other device functions. */
import type { CallExpression, Node } from 'ts-morph';
import { f16 } from '../../dsl/device.js';
import {
  type Call,
  componentOf,
  describeType,
  type Expression,
  isValueType,
  type Parameter,
  sizeOf,
  type ValueType,
} from '../ir.js';
import type { Context, Header, Local } from './context.js';
import { lowerAs, lowerExpression, lowerUnsigned, nameOf } from './expressions.js';
import { conversions, intrinsics, isIntrinsic, isVectorName, readsWords } from './library.js';
import { lowerWholeDivision } from './operators.js';
import { mathReplacements, optionalChaining } from './unsupported.js';
import { expectType, literal, requireUnsigned, typeBare, type Value } from './values.js';

export function lowerCall(context: Context, node: CallExpression, hint: ValueType | undefined): Value | Call {
  if (node.hasQuestionDotToken()) return context.refuse(node, optionalChaining);
  const callee = node.getExpression();
  const name = callee.getText();
  if (!context.morph.Node.isIdentifier(callee)) return refuseCallee(context, node);
  const local = context.local(name);
  if (local) return lowerLookup(context, node, name, local);
  const entity = context.outer(name);
  if (entity?.kind === 'library') {
    const builtin = context.session.builtins.get(entity.name);
    if (builtin) return lowerDeviceCall(context, node, builtin.name, builtin);
    return lowerLibrary(context, node, entity.name, hint);
  }
  if (entity?.kind === 'function') {
    const header = context.session.require(entity.declaration, node);
    return lowerDeviceCall(context, node, entity.declaration.getNameOrThrow(), header);
  }
  const where = entity?.kind === 'unresolved' ? `${name}, from ${entity.specifier}, which has no file here` : name;
  return context.fail(
    node,
    'a device function',
    where,
    "Call functions of kvforge or your own that start with 'device'.",
  );
}

function lowerDeviceCall(context: Context, node: CallExpression, name: string, header: Header): Call {
  const values = lowerArguments(context, node, name, header.params);
  return { kind: 'call', type: header.returns, function: name, arguments: values, at: context.positionOf(node) };
}

function refuseCallee(context: Context, node: CallExpression): never {
  const written = node.getExpression().getText();
  const [, member] = /^Math\.(\w+)$/.exec(written) ?? [];
  const replacement = member && mathReplacements[member];
  const hint = replacement
    ? `Write ${replacement}.`
    : "Call functions of kvforge or your own that start with 'device'.";
  return context.fail(node, 'a device function', context.quote(node.getExpression()), hint);
}

function checkCount(context: Context, node: CallExpression, name: string, count: number): readonly Node[] {
  const given = node.getArguments();
  const spread = given.find((argument) => context.morph.Node.isSpreadElement(argument));
  if (spread) lowerExpression(context, spread, undefined);
  if (given.length === count) return given;
  const plural = count === 1 ? '' : 's';
  return context.fail(node, `${count} argument${plural} for ${name}`, String(given.length), 'Write every argument.');
}

function lowerLookup(context: Context, node: CallExpression, name: string, local: Local): Value {
  if (isValueType(local.type) || local.type.kind !== 'lookup') {
    return context.fail(
      node,
      'a device function or a Lookup',
      `${name} of type ${describeType(local.type)}`,
      'Remove the call.',
    );
  }
  const [index] = checkCount(context, node, name, 1);
  return { kind: 'lookup', type: local.type.element, lookup: name, index: lowerUnsigned(context, index!, 'u32') };
}

function lowerLibrary(context: Context, node: CallExpression, name: string, hint: ValueType | undefined): Value {
  if (conversions.has(name)) return lowerConversion(context, node, name as 'f32' | 'f16' | 'i32' | 'u32');
  if (isIntrinsic(name)) return lowerIntrinsic(context, node, name, hint);
  if (isVectorName(name)) {
    const component = componentOf(name);
    const values = checkCount(context, node, name, sizeOf(name)).map((argument) =>
      lowerAs(context, argument, component),
    );
    return { kind: 'construct', type: name, arguments: values };
  }
  if (name === 'umul' || name === 'uadd') {
    const [left, right] = checkCount(context, node, name, 2).map((argument) => lowerAs(context, argument, 'u32'));
    return { kind: 'binary', type: 'u32', operator: name === 'umul' ? '*' : '+', left: left!, right: right! };
  }
  if (name === 'isFiniteBits') {
    const [argument] = checkCount(context, node, name, 1).map((one) => lowerAs(context, one, 'f32'));
    const bits: Expression = { kind: 'intrinsic', type: 'u32', name: 'bitsOf', arguments: [argument!] };
    const exponent = literal('u32', 0x7f800000);
    const masked: Expression = { kind: 'binary', type: 'u32', operator: '&', left: bits, right: exponent };
    return { kind: 'binary', type: 'bool', operator: '!=', left: masked, right: exponent };
  }
  if (name === 'zeros') {
    return context.fail(
      node,
      'zeros in a declaration',
      context.quote(node),
      "Write `const values = zeros('f32', 8);`.",
    );
  }
  return context.fail(
    node,
    'a device function',
    `${name} of kvforge, which is none`,
    'See dsl/device.ts for those there are.',
  );
}

function lowerConversion(context: Context, node: CallExpression, to: 'f32' | 'f16' | 'i32' | 'u32'): Value {
  const [argument] = checkCount(context, node, to, 1);
  const whole = to === 'i32' || to === 'u32' ? lowerWholeDivision(context, argument!) : undefined;
  const value = whole ?? lowerExpression(context, argument!, to === 'f16' ? 'f32' : to);
  if (value.kind === 'bare') {
    if (to === 'u32') return literal(to, value.value >>> 0);
    if (to === 'i32') return literal(to, value.value | 0);
    return typeBare(context, argument!, to === 'f16' ? { ...value, value: f16(value.value) } : value, to);
  }
  const fromBool = value.type === 'bool' && (to === 'f32' || to === 'f16');
  if (fromBool || !(value.type === 'bool' || conversions.has(value.type))) {
    const hint = fromBool ? 'Write `condition ? 1 : 0`.' : 'Convert its components one by one.';
    return context.fail(argument!, `a number for ${to}`, value.type, hint);
  }
  if (value.type === to) {
    const same = { ...value };
    context.wrapped.add(same);
    return same;
  }
  if (to === 'f32' || to === 'f16') requireUnsigned(context, argument!, value);
  if (to === 'f16' && value.type !== 'f32') {
    return { kind: 'convert', type: to, operand: { kind: 'convert', type: 'f32', operand: value } };
  }
  return { kind: 'convert', type: to, operand: value };
}

function lowerIntrinsic(
  context: Context,
  node: CallExpression,
  name: keyof typeof intrinsics,
  hint: ValueType | undefined,
): Value {
  const signature = intrinsics[name];
  const given = checkCount(context, node, name, signature.params.length);
  const { generic = [] } = signature;
  // `T`: the type of the first argument that has one, else what is wanted, else f32.
  let variable: ValueType | undefined;
  const lowered = given.map((argument, i) => {
    const slot = signature.params[i]!;
    const value = lowerExpression(context, argument, slot === 'T' ? (variable ?? hint) : slot);
    if (slot !== 'T' || value.kind === 'bare' || variable) return value;
    if (generic.includes(value.type)) variable = value.type;
    else context.fail(argument, `${generic.join(' or ')} for ${name}`, value.type, `Convert it before ${name}.`);
    return value;
  });
  const type = variable ?? (hint && generic.includes(hint) ? hint : 'f32');
  const values = lowered.map((value, i) => {
    const slot = signature.params[i]!;
    const typed = expectType(context, given[i]!, value, slot === 'T' ? type : slot);
    return readsWords.has(name) ? typed : requireUnsigned(context, given[i]!, typed);
  });
  return { kind: 'intrinsic', type: signature.returns === 'T' ? type : signature.returns, name, arguments: values };
}

function lowerArguments(
  context: Context,
  node: CallExpression,
  name: string,
  params: readonly Parameter[],
): Expression[] {
  const given = checkCount(context, node, name, params.length);
  return params.map((param, i) => {
    const argument = given[i]!;
    if (isValueType(param.type)) {
      const value = lowerUnsigned(context, argument, param.type);
      if (param.static && context.levelOf(value) !== 'static') {
        const received = `${context.quote(argument)}, known only when the kernel runs`;
        const hint = `Pass a literal, an array length or a Static parameter as ${param.name}.`;
        return context.fail(argument, `a static ${param.name} for ${name}`, received, hint);
      }
      return value;
    }
    return lowerReference(context, argument, param);
  });
}

/** Arrays and tables are passed by name only: neither target can hold a reference in a variable. */
function lowerReference(context: Context, argument: Node, param: Parameter): Expression {
  const local = context.morph.Node.isIdentifier(argument) ? context.local(argument.getText()) : undefined;
  const wanted = param.type;
  if (local && !isValueType(local.type) && !isValueType(wanted)) {
    const same = local.type.kind === wanted.kind && local.type.element === wanted.element;
    if (same) return nameOf(context, argument.getText(), local.type);
  }
  const received = local ? `${argument.getText()} of type ${describeType(local.type)}` : context.quote(argument);
  const hint = `Pass a parameter or local of that type as ${param.name}.`;
  return context.fail(argument, describeType(wanted), received, hint);
}
