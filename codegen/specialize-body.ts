/** Statements of a specialised function: static branches resolved, constants propagated, dead code dropped. */
import { fold } from './fold.js';
import {
  type Assign,
  type Declare,
  type Expression,
  type For,
  type If,
  isInteger,
  operandsOf,
  type Position,
  type Statement,
  type Type,
} from './ir.js';
import { endlessLoop, loopRange, type Range, rangeOf, tripCount } from './ranges.js';

export interface Rewriter {
  /** Of the loop variables and the constants that rest on them, as they are met. */
  readonly ranges: Map<string, Range>;
  fail(position: Position, expected: string, received: string, hint: string): never;
  rename(name: string): string;
  /** The type of a local being declared. */
  typeOf(name: string, type: Type): Type;
  /** Renames a folded expression and specialises what it calls. */
  finish(expression: Expression): Expression;
}

type Known = ReadonlyMap<string, Expression>;

export function rewriteBody(rewriter: Rewriter, statements: readonly Statement[], outer: Known): Statement[] {
  const known = new Map(outer);
  const result: Statement[] = [];
  for (const [i, statement] of statements.entries()) {
    const rewritten = rewrite(rewriter, statement, known);
    const clash =
      rewritten.inlined && declaresAny(rewritten.statements, [...result, ...statements.slice(i + 1)], rewriter);
    result.push(...(clash ? [{ kind: 'block', body: rewritten.statements } as const] : rewritten.statements));
    if (result.at(-1)?.kind === 'return') break;
  }
  return withoutResultVariable(result);
}

/** Where branches are gone, a variable may be left that only carries the result to its return: that returns it itself. */
function withoutResultVariable(statements: Statement[]): Statement[] {
  const last = statements.at(-1);
  if (last?.kind !== 'return' || last.value?.kind !== 'name') return statements;
  const { name } = last.value;
  const declares = (statement: Statement | undefined): statement is Declare =>
    statement?.kind === 'declare' && statement.mutable && statement.name === name;
  const before = statements.at(-2);
  if (declares(before) && before.value) return [...statements.slice(0, -2), { ...last, value: before.value }];
  const declared = statements.at(-3);
  if (!declares(declared) || before?.kind !== 'assign' || before.operator !== '=') return statements;
  if (before.target.kind !== 'name' || before.target.name !== name) return statements;
  // A first value that nothing reads may go, unless it comes from a function, which may fill an array.
  if (holds(before.value, (one) => one.kind === 'name' && one.name === name)) return statements;
  if (declared.value && holds(declared.value, (one) => one.kind === 'call')) return statements;
  return [...statements.slice(0, -3), { ...last, value: before.value }];
}

function holds(expression: Expression, test: (one: Expression) => boolean): boolean {
  return test(expression) || operandsOf(expression).some((operand) => holds(operand, test));
}

interface Rewritten {
  readonly statements: readonly Statement[];
  /** They stood in a scope of their own. */
  readonly inlined?: boolean;
}

function declaredIn(statements: readonly Statement[]): string[] {
  return statements.flatMap((statement) => (statement.kind === 'declare' ? [statement.name] : []));
}

/** Whether inlining would put two declarations of one name into one scope. */
function declaresAny(inlined: readonly Statement[], around: readonly Statement[], rewriter: Rewriter): boolean {
  const names = new Set(declaredIn(inlined));
  if (names.size === 0) return false;
  return around.some((statement) => mentions(statement, names, rewriter));
}

function mentions(statement: Statement, names: ReadonlySet<string>, rewriter: Rewriter): boolean {
  switch (statement.kind) {
    case 'declare':
      return names.has(statement.name) || names.has(rewriter.rename(statement.name));
    case 'for':
      return (
        [statement.variable, rewriter.rename(statement.variable)].some((name) => names.has(name)) ||
        statement.body.some((one) => mentions(one, names, rewriter))
      );
    case 'if':
      return [...statement.whenTrue, ...statement.whenFalse].some((one) => mentions(one, names, rewriter));
    case 'block':
      return statement.body.some((one) => mentions(one, names, rewriter));
    default:
      return false;
  }
}

function rewrite(rewriter: Rewriter, statement: Statement, known: Map<string, Expression>): Rewritten {
  const value = (expression: Expression): Expression => rewriter.finish(fold(expression, known));
  switch (statement.kind) {
    case 'declare':
      return { statements: rewriteDeclare(rewriter, statement, known) };
    case 'assign': {
      const target = value(statement.target) as Assign['target'];
      return { statements: [{ ...statement, target, value: value(statement.value) }] };
    }
    case 'call':
      return { statements: [{ ...statement, call: value(statement.call) as typeof statement.call }] };
    case 'return':
      return { statements: [statement.value ? { ...statement, value: value(statement.value) } : statement] };
    case 'block':
      return { statements: rewriteBody(rewriter, statement.body, known), inlined: true };
    case 'if':
      return rewriteIf(rewriter, statement, known);
    case 'for':
      return { statements: rewriteFor(rewriter, statement, known) };
  }
}

function rewriteDeclare(rewriter: Rewriter, statement: Declare, known: Map<string, Expression>): Statement[] {
  const type = rewriter.typeOf(statement.name, foldLength(statement.type, known)) as Declare['type'];
  const folded = statement.value && fold(statement.value, known);
  if (folded?.kind === 'literal' && !statement.mutable) {
    known.set(statement.name, folded);
    return [];
  }
  if (folded && !statement.mutable && isInteger(folded.type as Type)) {
    rewriter.ranges.set(statement.name, rangeOf(folded, rewriter.ranges));
  }
  const name = rewriter.rename(statement.name);
  return [{ ...statement, name, type, ...(folded ? { value: rewriter.finish(folded) } : {}) }];
}

/** A local array may take its length from a local constant, which only this scope knows. */
function foldLength(type: Type, known: Known): Type {
  return typeof type === 'string' || type.kind === 'lookup' ? type : { ...type, length: fold(type.length, known) };
}

function rewriteIf(rewriter: Rewriter, statement: If, known: Known): Rewritten {
  const condition = fold(statement.condition, known);
  if (condition.kind === 'literal') {
    const taken = condition.value ? statement.whenTrue : statement.whenFalse;
    return { statements: rewriteBody(rewriter, taken, known), inlined: true };
  }
  const whenTrue = rewriteBody(rewriter, statement.whenTrue, known);
  const whenFalse = rewriteBody(rewriter, statement.whenFalse, known);
  return { statements: [{ ...statement, condition: rewriter.finish(condition), whenTrue, whenFalse }] };
}

function rewriteFor(rewriter: Rewriter, statement: For, known: Known): Statement[] {
  const [start, bound, step] = [statement.start, statement.bound, statement.step].map((one) => fold(one, known));
  const loop: For = { ...statement, start: start!, bound: bound!, step: step! };
  if (tripCount(loop) === 0) return [];
  const endless = endlessLoop(loop, rewriter.ranges);
  if (endless) rewriter.fail(statement.at, 'a loop that ends', endless.received, endless.hint);
  rewriter.ranges.set(statement.variable, loopRange(loop, rewriter.ranges).inside);
  const finished = {
    start: rewriter.finish(loop.start),
    bound: rewriter.finish(loop.bound),
    step: rewriter.finish(loop.step),
  };
  const body = rewriteBody(rewriter, statement.body, known);
  return [{ ...loop, ...finished, variable: rewriter.rename(statement.variable), body }];
}
