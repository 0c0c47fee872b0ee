/**
 * WGSL's `select` evaluates both sides. A ternary whose sides read memory or cost much becomes an if: the side not
 * chosen may hold an index out of range, and is not to be paid for.
 */
import {
  type Assign,
  type Expression,
  mapOperands,
  operandsOf,
  type SpecializedFunction,
  type Statement,
  type ValueType,
} from '../ir.js';

const cheap: ReadonlySet<string> = new Set([
  'abs',
  'min',
  'max',
  'clamp',
  'floor',
  'ceil',
  'trunc',
  'round',
  'fma',
  'bitsOf',
  'fromBits',
  'countOneBits',
  'packHalf2',
  'unpackHalf2',
]);

function mayRunUnchosen(expression: Expression): boolean {
  if (expression.kind === 'call' || expression.kind === 'lookup' || expression.kind === 'element') return false;
  if (expression.kind === 'intrinsic' && !cheap.has(expression.name)) return false;
  return operandsOf(expression).every(mayRunUnchosen);
}

function needsBranch(expression: Expression): boolean {
  if (expression.kind === 'select' && !(mayRunUnchosen(expression.yes) && mayRunUnchosen(expression.no))) return true;
  return operandsOf(expression).some(needsBranch);
}

function isName(expression: Expression, name: string): boolean {
  return expression.kind === 'name' && expression.name === name;
}

class Brancher {
  private count = 0;

  constructor(private readonly taken: ReadonlySet<string>) {}

  body(statements: readonly Statement[]): Statement[] {
    return statements.flatMap((statement) => this.statement(statement));
  }

  private statement(statement: Statement): Statement[] {
    const before: Statement[] = [];
    switch (statement.kind) {
      case 'declare': {
        const { value, type } = statement;
        if (value?.kind === 'select' && needsBranch(value) && typeof type === 'string') {
          const { value: _, ...declared } = statement;
          const target = { kind: 'name', type, name: statement.name } as const;
          const assign: Assign = { kind: 'assign', target, operator: '=', value, at: statement.at };
          return [{ ...declared, mutable: true }, ...this.statement(assign)];
        }
        if (!value) return [statement];
        const declared = { ...statement, value: this.expression(value, before) };
        return [...before, declared];
      }
      case 'assign': {
        const { value } = statement;
        if (value.kind === 'select' && needsBranch(value)) {
          return this.choose(value, (side) => ({ ...statement, value: side }), statement.at);
        }
        const target = this.expression(statement.target, before) as Assign['target'];
        const assigned = { ...statement, target, value: this.expression(value, before) };
        return [...before, assigned];
      }
      case 'return': {
        const { value } = statement;
        if (!value) return [statement];
        if (value.kind === 'select' && needsBranch(value)) {
          return this.choose(value, (side) => ({ ...statement, value: side }), statement.at);
        }
        const returned = { ...statement, value: this.expression(value, before) };
        return [...before, returned];
      }
      case 'call': {
        const call = this.expression(statement.call, before) as typeof statement.call;
        return [...before, { ...statement, call }];
      }
      case 'if': {
        const condition = this.expression(statement.condition, before);
        const branches = { whenTrue: this.body(statement.whenTrue), whenFalse: this.body(statement.whenFalse) };
        return [...before, { ...statement, condition, ...branches }];
      }
      case 'for':
      case 'block':
        return [{ ...statement, body: this.body(statement.body) }];
    }
  }

  /** The statement once per side, under an if. */
  private choose(
    value: Extract<Expression, { kind: 'select' }>,
    apply: (side: Expression) => Statement,
    at: Assign['at'],
  ): Statement[] {
    const before: Statement[] = [];
    const condition = this.expression(value.condition, before);
    const whenTrue = this.statement(apply(value.yes));
    const last = apply(value.no);
    // `x = c ? y : x` leaves x alone.
    const idle = last.kind === 'assign' && last.target.kind === 'name' && isName(last.value, last.target.name);
    const whenFalse = idle ? [] : this.statement(last);
    return [...before, { kind: 'if', condition, whenTrue, whenFalse, at }];
  }

  /** The expression without such ternaries; what decides them goes before it. */
  private expression(expression: Expression, before: Statement[]): Expression {
    if (!needsBranch(expression)) return expression;
    const at = { line: 0, column: 0 };
    if (expression.kind === 'select') {
      const target = this.variable(expression.type);
      before.push({ kind: 'declare', name: target.name, type: expression.type, mutable: true, at });
      const assign: Assign = { kind: 'assign', target, operator: '=', value: expression, at };
      before.push(...this.statement(assign));
      return target;
    }
    const lazy = expression.kind === 'binary' && (expression.operator === '&&' || expression.operator === '||');
    if (!lazy || !needsBranch(expression.right)) {
      return mapOperands(expression, (operand) => this.expression(operand, before));
    }
    const target = this.variable('bool');
    const value = this.expression(expression.left, before);
    before.push({ kind: 'declare', name: target.name, type: 'bool', mutable: true, value, at });
    const condition: Expression =
      expression.operator === '&&' ? target : { kind: 'unary', type: 'bool', operator: '!', operand: target };
    const assign: Assign = { kind: 'assign', target, operator: '=', value: expression.right, at };
    before.push({ kind: 'if', condition, whenTrue: this.statement(assign), whenFalse: [], at });
    return target;
  }

  private variable(type: ValueType): { readonly kind: 'name'; readonly type: ValueType; readonly name: string } {
    let name: string;
    do name = `chosen_${++this.count}`;
    while (this.taken.has(name));
    return { kind: 'name', type, name };
  }
}

function namesIn(statements: readonly Statement[]): string[] {
  return statements.flatMap((statement) => {
    if (statement.kind === 'declare') return [statement.name];
    if (statement.kind === 'if') return [...namesIn(statement.whenTrue), ...namesIn(statement.whenFalse)];
    return statement.kind === 'for' || statement.kind === 'block' ? namesIn(statement.body) : [];
  });
}

/** The body with every ternary that must not evaluate both sides written as an if. */
export function chooseByBranch({ params, body }: SpecializedFunction): Statement[] {
  return new Brancher(new Set([...params.map(({ name }) => name), ...namesIn(body)])).body(body);
}
