/** What CUDA and WGSL share: literals, precedence, statements and layout. Each target supplies a dialect. */
import { commentLine } from '../comment.js';
import type {
  Assign,
  BinaryOperator,
  Call,
  Construct,
  Convert,
  Declare,
  Element,
  Expression,
  For,
  Intrinsic,
  Literal,
  LookupRead,
  Name,
  Select,
  SpecializedFunction,
  Statement,
} from '../ir.js';

export interface Dialect {
  literal(expression: Literal): string;
  name(expression: Name): string;
  convert(expression: Convert): Printed;
  construct(expression: Construct): string;
  intrinsic(expression: Intrinsic): Printed;
  call(expression: Call): string;
  lookup(expression: LookupRead): string;
  element(expression: Element): string;
  select(expression: Select): Printed;
  /** A shift amount, which WGSL wants unsigned. */
  shiftAmount(expression: Expression): Expression;
  declare(statement: Declare): string;
  callStatement(call: Call): string;
  /** The lines before the body of a loop: its head, and what the target says about unrolling. */
  loopHead(statement: For): readonly string[];
}

/** Text and how tightly it binds. */
export interface Printed {
  readonly text: string;
  readonly rank: number;
}

// WGSL's grammar decides: it refuses some mixtures that C++ allows but compilers warn about, so both print alike.
export const rank = {
  primary: 10,
  unary: 9,
  product: 8,
  sum: 7,
  shift: 6,
  comparison: 5,
  bits: 4,
  logic: 3,
  select: 1,
};

const ranks: Readonly<Record<BinaryOperator, number>> = {
  '*': rank.product,
  '/': rank.product,
  '%': rank.product,
  '+': rank.sum,
  '-': rank.sum,
  '<<': rank.shift,
  '>>': rank.shift,
  '<': rank.comparison,
  '<=': rank.comparison,
  '>': rank.comparison,
  '>=': rank.comparison,
  '==': rank.comparison,
  '!=': rank.comparison,
  '&': rank.bits,
  '|': rank.bits,
  '^': rank.bits,
  '&&': rank.logic,
  '||': rank.logic,
};

/** The least rank each side may have without parentheses. */
function allowed(operator: BinaryOperator): readonly [number, number] {
  const own = ranks[operator];
  if (own === rank.product) return [rank.product, rank.unary];
  if (own === rank.sum) return [rank.sum, rank.product];
  if (own === rank.comparison) return [rank.shift, rank.shift];
  if (own === rank.logic) return [rank.comparison, rank.comparison];
  return [rank.unary, rank.unary];
}

const chaining: ReadonlySet<string> = new Set(['&', '|', '^', '&&', '||']);

export function parenthesize(printed: Printed, least: number): string {
  return printed.rank >= least ? printed.text : `(${printed.text})`;
}

export function printed(dialect: Dialect, expression: Expression): Printed {
  const primary = (text: string): Printed => ({ text, rank: rank.primary });
  switch (expression.kind) {
    case 'literal': {
      const text = dialect.literal(expression);
      return { text, rank: text.startsWith('-') ? rank.unary : rank.primary };
    }
    case 'name':
      return primary(dialect.name(expression));
    case 'unary': {
      const operand = parenthesize(printed(dialect, expression.operand), rank.unary);
      const text = operand.startsWith(expression.operator) && operand[0] === '-' ? `(${operand})` : operand;
      return { text: `${expression.operator}${text}`, rank: rank.unary };
    }
    case 'binary': {
      const { operator, left } = expression;
      const shift = operator === '<<' || operator === '>>';
      const right = shift ? dialect.shiftAmount(expression.right) : expression.right;
      const [leastLeft, leastRight] = allowed(operator);
      const chained = chaining.has(operator) && left.kind === 'binary' && left.operator === operator;
      const first = parenthesize(printed(dialect, left), chained ? 0 : leastLeft);
      const second = parenthesize(printed(dialect, right), leastRight);
      return { text: `${first} ${operator} ${second}`, rank: ranks[operator] };
    }
    case 'select':
      return dialect.select(expression);
    case 'convert':
      return dialect.convert(expression);
    case 'construct':
      return primary(dialect.construct(expression));
    case 'intrinsic':
      return dialect.intrinsic(expression);
    case 'call':
      return primary(dialect.call(expression));
    case 'lookup':
      return primary(dialect.lookup(expression));
    case 'element':
      return primary(dialect.element(expression));
    case 'member':
      return primary(`${parenthesize(printed(dialect, expression.vector), rank.primary)}.${expression.member}`);
  }
}

export function text(dialect: Dialect, expression: Expression): string {
  return printed(dialect, expression).text;
}

export function printArguments(dialect: Dialect, expressions: readonly Expression[]): string {
  const bare = expressions.map((expression) => printed(dialect, expression));
  // WGSL reads `f(a < b, c > d)` as a template list.
  const many = bare.filter((one) => one.rank === rank.comparison).length > 1;
  return bare.map((one) => (many && one.rank === rank.comparison ? `(${one.text})` : one.text)).join(', ');
}

/** The shortest decimal that is this float32, with a point. */
export function floatText(value: number): string {
  const target = Math.fround(value);
  let digits = String(value);
  for (let precision = 1; precision <= 9; precision++) {
    const short = value.toPrecision(precision);
    if (Math.fround(Number(short)) !== target) continue;
    digits = String(Number(short));
    break;
  }
  if (Object.is(value, -0)) digits = '-0';
  const [mantissa = '0', exponent] = digits.replace('e+', 'e').split('e');
  const pointed = mantissa.includes('.') ? mantissa : `${mantissa}.0`;
  return exponent === undefined ? pointed : `${pointed}e${exponent}`;
}

/** Masks and patterns read better in hexadecimal. */
export function unsignedText(value: number): string {
  return value >= 2 ** 24 ? `0x${value.toString(16)}u` : `${value}u`;
}

function printAssign(dialect: Dialect, { target, operator, value }: Assign): string {
  const shift = operator === '<<=' || operator === '>>=';
  const right = text(dialect, shift ? dialect.shiftAmount(value) : value);
  return `${text(dialect, target)} ${operator} ${right};`;
}

export function printStatements(dialect: Dialect, statements: readonly Statement[], indent: string): string[] {
  return statements.flatMap((statement) => printStatement(dialect, statement, indent));
}

function printStatement(dialect: Dialect, statement: Statement, indent: string): string[] {
  const inner = (body: readonly Statement[]): string[] => printStatements(dialect, body, `${indent}  `);
  switch (statement.kind) {
    case 'declare':
      return [`${indent}${dialect.declare(statement)}`];
    case 'assign':
      return [`${indent}${printAssign(dialect, statement)}`];
    case 'call':
      return [`${indent}${dialect.callStatement(statement.call)}`];
    case 'return':
      return [`${indent}return${statement.value ? ` ${text(dialect, statement.value)}` : ''};`];
    case 'block':
      return [`${indent}{`, ...inner(statement.body), `${indent}}`];
    case 'for': {
      const head = dialect.loopHead(statement).map((line) => `${indent}${line}`);
      return [...head, ...inner(statement.body), `${indent}}`];
    }
    case 'if': {
      const lines = [`${indent}if (${text(dialect, statement.condition)}) {`, ...inner(statement.whenTrue)];
      const [only] = statement.whenFalse;
      if (only?.kind === 'if' && statement.whenFalse.length === 1) {
        const [first = '', ...rest] = printStatement(dialect, only, indent);
        return [...lines, `${indent}} else ${first.trimStart()}`, ...rest];
      }
      if (statement.whenFalse.length === 0) return [...lines, `${indent}}`];
      return [...lines, `${indent}} else {`, ...inner(statement.whenFalse), `${indent}}`];
    }
  }
}

/** Where a printed function comes from, for who reads the kernel. */
export function printOrigin({ file, position, name, statics, doc }: SpecializedFunction): string[] {
  const chosen = Object.entries(statics).map(([param, value]) => `, ${param} = ${value}`);
  const origin = commentLine(`${file}:${position.line} ${name}${chosen.join('')}`);
  return doc === undefined ? [origin] : [origin, commentLine(doc)];
}

export function stepText({ variable, comparison, step }: For, amount: string): string {
  const upward = comparison.startsWith('<');
  if (step.kind === 'literal' && step.value === 1) return `${variable}${upward ? '++' : '--'}`;
  return `${variable} ${upward ? '+=' : '-='} ${amount}`;
}
