/**
 * The intermediate form of device functions: plain JSON, fully typed, free of TypeScript.
 *
 * Before specialisation, static parameters and lengths are expressions; `specialize` replaces them by numbers.
 */
export type ScalarName = 'f32' | 'f16' | 'i32' | 'u32' | 'bool';
export type VectorName = 'vec2f' | 'vec3f' | 'vec4f' | 'vec2i' | 'vec3i' | 'vec4i' | 'vec2u' | 'vec3u' | 'vec4u';
/** What an expression yields, a variable holds and an array stores. */
export type ValueType = ScalarName | VectorName;

export interface ArrayType {
  readonly kind: 'array';
  readonly element: ValueType;
  /** A static expression; a literal once specialised. */
  readonly length: Expression;
}
export interface LookupType {
  readonly kind: 'lookup';
  readonly element: ValueType;
}
export type Type = ValueType | ArrayType | LookupType;

export interface Position {
  readonly line: number;
  readonly column: number;
}

export type UnaryOperator = '-' | '!' | '~';
export type ArithmeticOperator = '+' | '-' | '*' | '/' | '%';
export type BitOperator = '&' | '|' | '^' | '<<' | '>>';
export type ComparisonOperator = '<' | '<=' | '>' | '>=' | '==' | '!=';
export type BinaryOperator = ArithmeticOperator | BitOperator | ComparisonOperator | '&&' | '||';
export type AssignmentOperator = '=' | `${ArithmeticOperator | BitOperator}=`;

/** Functions of `dsl/device.ts` that every target has a counterpart for. */
export type IntrinsicName =
  | 'abs'
  | 'min'
  | 'max'
  | 'clamp'
  | 'floor'
  | 'ceil'
  | 'trunc'
  | 'round'
  | 'sqrt'
  | 'inverseSqrt'
  | 'exp'
  | 'exp2'
  | 'log'
  | 'log2'
  | 'sin'
  | 'cos'
  | 'fma'
  | 'bitsOf'
  | 'fromBits'
  | 'countOneBits'
  | 'packHalf2'
  | 'unpackHalf2'
  | 'dot'
  | 'vectorAdd'
  | 'vectorSubtract'
  | 'vectorMultiply'
  | 'vectorScale';

export interface Literal {
  readonly kind: 'literal';
  readonly type: ScalarName;
  readonly value: number | boolean;
}
/** A parameter or local; `static` when it is known once the function is specialised. */
export interface Name {
  readonly kind: 'name';
  readonly type: Type;
  readonly name: string;
  readonly static?: true;
}
export interface Unary {
  readonly kind: 'unary';
  readonly type: ValueType;
  readonly operator: UnaryOperator;
  readonly operand: Expression;
}
/** Operands have one type, except that a shift amount is any integer. `/` of integers truncates. */
export interface Binary {
  readonly kind: 'binary';
  readonly type: ValueType;
  readonly operator: BinaryOperator;
  readonly left: Expression;
  readonly right: Expression;
  readonly at?: Position;
}
/** The TypeScript ternary: only the chosen side is evaluated. */
export interface Select {
  readonly kind: 'select';
  readonly type: ValueType;
  readonly condition: Expression;
  readonly yes: Expression;
  readonly no: Expression;
}
export interface Convert {
  readonly kind: 'convert';
  readonly type: ScalarName;
  readonly operand: Expression;
}
export interface Construct {
  readonly kind: 'construct';
  readonly type: VectorName;
  readonly arguments: readonly Expression[];
}
export interface Intrinsic {
  readonly kind: 'intrinsic';
  readonly type: ValueType;
  readonly name: IntrinsicName;
  readonly arguments: readonly Expression[];
}
/** A call of a device function: by its TypeScript name before specialisation, by its emitted name after. */
export interface Call {
  readonly kind: 'call';
  readonly type: ValueType | 'void';
  readonly function: string;
  readonly arguments: readonly Expression[];
  readonly at: Position;
}
/** A read of a table. `function`, which WGSL calls, is known after specialisation. */
export interface LookupRead {
  readonly kind: 'lookup';
  readonly type: ValueType;
  readonly lookup: string;
  readonly index: Expression;
  readonly function?: string;
}
export interface Element {
  readonly kind: 'element';
  readonly type: ValueType;
  readonly array: Name;
  readonly index: Expression;
  readonly at: Position;
}
export interface Member {
  readonly kind: 'member';
  readonly type: ScalarName;
  readonly vector: Expression;
  readonly member: 'x' | 'y' | 'z' | 'w';
}
export type Expression =
  | Literal
  | Name
  | Unary
  | Binary
  | Select
  | Convert
  | Construct
  | Intrinsic
  | Call
  | LookupRead
  | Element
  | Member;

/** Without a value: an array of zeros, or a variable that every path assigns before it is read. */
export interface Declare {
  readonly kind: 'declare';
  readonly name: string;
  readonly type: ValueType | ArrayType;
  readonly mutable: boolean;
  readonly value?: Expression;
  readonly at: Position;
}
export interface Assign {
  readonly kind: 'assign';
  readonly target: Name | Element;
  readonly operator: AssignmentOperator;
  readonly value: Expression;
  readonly at: Position;
}
export interface If {
  readonly kind: 'if';
  readonly condition: Expression;
  readonly whenTrue: readonly Statement[];
  readonly whenFalse: readonly Statement[];
  readonly at: Position;
}
/** `step` is added, or subtracted when the comparison is `>` or `>=`. */
export interface For {
  readonly kind: 'for';
  readonly variable: string;
  readonly type: 'i32' | 'u32';
  readonly start: Expression;
  readonly comparison: '<' | '<=' | '>' | '>=';
  readonly bound: Expression;
  readonly step: Expression;
  readonly body: readonly Statement[];
  readonly at: Position;
}
export interface Return {
  readonly kind: 'return';
  readonly value?: Expression;
  readonly at: Position;
}
export interface CallStatement {
  readonly kind: 'call';
  readonly call: Call;
  readonly at: Position;
}
/** A bare scope: what stays of a branch whose condition was static, when its names would clash outside. */
export interface Block {
  readonly kind: 'block';
  readonly body: readonly Statement[];
}
export type Statement = Declare | Assign | If | For | Return | CallStatement | Block;

export interface Parameter {
  readonly name: string;
  readonly type: Type;
  readonly static: boolean;
}

export interface FunctionIr {
  /** The TypeScript name. */
  readonly name: string;
  /** Relative to the package that holds it, with forward slashes. */
  readonly file: string;
  readonly position: Position;
  /** The first sentence of its JSDoc. */
  readonly doc?: string;
  readonly params: readonly Parameter[];
  readonly returns: ValueType | 'void';
  readonly body: readonly Statement[];
}

/** A function with its static parameters gone; names in it are those printed. */
export interface SpecializedFunction extends FunctionIr {
  readonly emittedName: string;
  readonly statics: Readonly<Record<string, number>>;
  /** For each lookup parameter, the function WGSL calls in its place. */
  readonly lookups: Readonly<Record<string, string>>;
}

export function isValueType(type: Type | 'void'): type is ValueType {
  return typeof type === 'string' && type !== 'void';
}

export function isInteger(type: Type | 'void'): type is 'i32' | 'u32' {
  return type === 'i32' || type === 'u32';
}

/** The component type of a vector. */
export function componentOf(type: VectorName): 'f32' | 'i32' | 'u32' {
  return type.endsWith('f') ? 'f32' : type.endsWith('i') ? 'i32' : 'u32';
}

export function sizeOf(type: VectorName): 2 | 3 | 4 {
  return Number(type[3]) as 2 | 3 | 4;
}

export function isVector(type: Type | 'void'): type is VectorName {
  return typeof type === 'string' && type.startsWith('vec');
}

/** A type as it is written in TypeScript. */
export function describeType(type: Type | 'void'): string {
  if (typeof type === 'string') return type;
  if (type.kind === 'lookup') return `Lookup<${type.element}>`;
  const { length } = type;
  const written =
    length.kind === 'literal' ? String(length.value) : length.kind === 'name' ? `typeof ${length.name}` : 'N';
  return `FixedArray<${type.element}, ${written}>`;
}

/** The direct operands of an expression. */
export function operandsOf(expression: Expression): readonly Expression[] {
  switch (expression.kind) {
    case 'literal':
    case 'name':
      return [];
    case 'unary':
    case 'convert':
      return [expression.operand];
    case 'binary':
      return [expression.left, expression.right];
    case 'select':
      return [expression.condition, expression.yes, expression.no];
    case 'construct':
    case 'intrinsic':
    case 'call':
      return expression.arguments;
    case 'lookup':
      return [expression.index];
    case 'element':
      return [expression.array, expression.index];
    case 'member':
      return [expression.vector];
  }
}

/** The same expression over other operands; the rule is applied to the direct operands only. */
export function mapOperands(expression: Expression, rule: (operand: Expression) => Expression): Expression {
  switch (expression.kind) {
    case 'literal':
    case 'name':
      return expression;
    case 'unary':
    case 'convert':
      return { ...expression, operand: rule(expression.operand) };
    case 'binary':
      return { ...expression, left: rule(expression.left), right: rule(expression.right) };
    case 'select':
      return {
        ...expression,
        condition: rule(expression.condition),
        yes: rule(expression.yes),
        no: rule(expression.no),
      };
    case 'construct':
    case 'intrinsic':
    case 'call':
      return { ...expression, arguments: expression.arguments.map(rule) };
    case 'lookup':
      return { ...expression, index: rule(expression.index) };
    case 'element':
      return { ...expression, array: rule(expression.array) as Name, index: rule(expression.index) };
    case 'member':
      return { ...expression, vector: rule(expression.vector) };
  }
}
