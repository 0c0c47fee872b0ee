/** Rules over whole functions: no recursion, and no writes whose order the targets leave open. */
import { KvforgeError } from '../../dsl/errors.js';
import { type Call, type Expression, type FunctionIr, operandsOf, type Position, type Statement } from '../ir.js';

interface Use {
  readonly call: Call;
  /** The call is the whole value of its statement, so that nothing else is evaluated around it. */
  readonly alone: boolean;
}

function fail(at: FunctionIr, position: Position, expected: string, received: string, hint: string): never {
  throw new KvforgeError('lowering', {
    at: `${at.file}:${position.line}:${position.column}`,
    expected,
    received,
    hint,
  });
}

function usesOf(expression: Expression, alone: boolean): Use[] {
  const inner = operandsOf(expression).flatMap((operand) => usesOf(operand, false));
  return expression.kind === 'call' ? [...inner, { call: expression, alone }] : inner;
}

function usesIn(statements: readonly Statement[]): Use[] {
  return statements.flatMap((statement): Use[] => {
    switch (statement.kind) {
      case 'declare':
      case 'return':
        return statement.value ? usesOf(statement.value, true) : [];
      case 'assign':
        return [...usesOf(statement.target, false), ...usesOf(statement.value, statement.target.kind === 'name')];
      case 'call':
        return usesOf(statement.call, true);
      case 'if':
        return [...usesOf(statement.condition, false), ...usesIn(statement.whenTrue), ...usesIn(statement.whenFalse)];
      default:
        return usesIn(statement.body);
    }
  });
}

function assignedIn(statements: readonly Statement[]): string[] {
  return statements.flatMap((statement) => {
    if (statement.kind === 'assign') return statement.target.kind === 'element' ? [statement.target.array.name] : [];
    if (statement.kind === 'if') return [...assignedIn(statement.whenTrue), ...assignedIn(statement.whenFalse)];
    return statement.kind === 'for' || statement.kind === 'block' ? assignedIn(statement.body) : [];
  });
}

/** Callee first; throws on a cycle. */
export function orderByCalls(functions: readonly FunctionIr[]): FunctionIr[] {
  const byName = new Map(functions.map((one) => [one.name, one]));
  const ordered = new Set<FunctionIr>();
  const visit = (one: FunctionIr, path: readonly FunctionIr[]): void => {
    if (ordered.has(one)) return;
    for (const { call } of usesIn(one.body)) {
      const callee = byName.get(call.function);
      if (!callee) continue;
      const chain = [...path, one];
      const start = chain.indexOf(callee);
      if (start >= 0) {
        const cycle = [...chain.slice(start), callee].map(({ name }) => name).join(' -> ');
        fail(
          one,
          call.at,
          'calls that end',
          `recursion: ${cycle}`,
          'Devices have no call stack; write a for loop with a static bound.',
        );
      }
      visit(callee, chain);
    }
    ordered.add(one);
  };
  for (const one of functions) visit(one, []);
  return [...ordered];
}

/** Expects callee-first order in both, because what a function writes depends on what it calls. */
export function checkWrites(builtins: readonly FunctionIr[], lowered: readonly FunctionIr[]): void {
  const writes = new Map<string, ReadonlySet<number>>();
  for (const one of [...builtins, ...lowered]) {
    const uses = usesIn(one.body);
    const written = new Set(assignedIn(one.body));
    for (const { call, alone } of uses) {
      const positions = writes.get(call.function) ?? new Set();
      for (const position of positions) {
        const argument = call.arguments[position];
        if (argument?.kind === 'name') written.add(argument.name);
      }
      if (positions.size > 0) checkUse(one, call, alone, positions);
    }
    writes.set(one.name, new Set(one.params.flatMap((param, i) => (written.has(param.name) ? [i] : []))));
  }
}

function checkUse(one: FunctionIr, call: Call, alone: boolean, positions: ReadonlySet<number>): void {
  if (!alone) {
    const received = `a call of ${call.function}, which writes to its array, inside an expression`;
    fail(
      one,
      call.at,
      'a call of its own',
      received,
      `Write \`const result = ${call.function}(...);\` first, then use result.`,
    );
  }
  for (const position of positions) {
    const target = call.arguments[position];
    const twice = call.arguments.findIndex(
      (argument, i) =>
        i !== position && argument.kind === 'name' && target?.kind === 'name' && argument.name === target.name,
    );
    if (twice >= 0 && target?.kind === 'name' && typeof target.type !== 'string') {
      const received = `${target.name} passed twice to ${call.function}, which writes to it`;
      fail(one, call.at, 'different arrays', received, 'Copy one into a second array first: WGSL forbids aliases.');
    }
  }
}
