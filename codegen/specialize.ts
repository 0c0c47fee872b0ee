/** From generic device functions to those one kernel needs: static parameters gone, constants folded. */
import { KvforgeError } from '../dsl/errors.js';
import { fold } from './fold.js';
import {
  type Call,
  describeType,
  type Expression,
  type FunctionIr,
  isValueType,
  mapOperands,
  type Name,
  type Parameter,
  type Position,
  type SpecializedFunction,
  type Type,
} from './ir.js';
import { createNamer, emittedName, snakeCase } from './names.js';
import { type Rewriter, rewriteBody } from './specialize-body.js';

export { emittedName } from './names.js';

export interface Root {
  /** The TypeScript name. */
  readonly name: string;
  /** By parameter name. */
  readonly statics: Readonly<Record<string, number>>;
  /** By parameter name, the WGSL function that reads the table; `load_` and the parameter's name when left out. */
  readonly lookups?: Readonly<Record<string, string>>;
}

/**
 * The functions one kernel needs: callee first, each once, with static parameters substituted, constants folded and
 * branches of static conditions removed.
 *
 * @example
 * specialize([{ name: 'quantizeSymmetric', statics: { bits: 4 } }], library)[0]?.emittedName; // quantize_symmetric_4
 */
export function specialize(roots: readonly Root[], library: ReadonlyMap<string, FunctionIr>): SpecializedFunction[] {
  return specializeRoots(roots, library).functions;
}

export interface SpecializedRoots {
  readonly functions: SpecializedFunction[];
  /** The emitted name of each root: needed where one function is bound to different lookups. */
  readonly names: readonly string[];
}

/** `taken`: names of the text around the functions, which they must not have. */
export function specializeRoots(
  roots: readonly Root[],
  library: ReadonlyMap<string, FunctionIr>,
  taken: ReadonlySet<string> = new Set(),
): SpecializedRoots {
  const session = new Specialization(library, taken);
  const names = roots.map((root) => session.require(root.name, root.statics, root.lookups ?? {}));
  return { functions: session.finished, names };
}

class Specialization {
  readonly finished: SpecializedFunction[] = [];
  /** The emitted name for each combination of function, statics and lookups. */
  private readonly names = new Map<string, string>();
  private readonly used: Set<string>;

  constructor(
    private readonly library: ReadonlyMap<string, FunctionIr>,
    private readonly taken: ReadonlySet<string>,
  ) {
    this.used = new Set(taken);
  }

  require(name: string, statics: Readonly<Record<string, number>>, lookups: Readonly<Record<string, string>>): string {
    const source = this.library.get(name);
    if (!source) {
      const hint = 'Lower the file that declares it, or correct the name.';
      throw new KvforgeError('lowering', {
        at: name,
        expected: 'a lowered device function',
        received: 'none of that name',
        hint,
      });
    }
    const values = source.params.filter((param) => param.static).map((param) => staticOf(source, param, statics));
    checkUnknown(source, statics);
    const tables = source.params.filter((param) => !isValueType(param.type) && param.type.kind === 'lookup');
    const bound = tables.map((param) => lookups[param.name] ?? `load_${snakeCase(param.name)}`);
    const key = JSON.stringify([name, values, bound]);
    const known = this.names.get(key);
    if (known !== undefined) return known;
    const base = emittedName(name, values);
    // A name that the text around has is not a function bound to other tables.
    let emitted =
      this.used.has(base) && !this.taken.has(base) && bound.length > 0 ? `${base}_with_${bound.join('_')}` : base;
    while (this.used.has(emitted)) emitted += '_';
    this.names.set(key, emitted);
    this.used.add(emitted);
    const lookupOf = new Map(tables.map((param, i) => [param.name, bound[i]!]));
    this.finished.push(this.build(source, emitted, values, lookupOf));
    return emitted;
  }

  private build(
    source: FunctionIr,
    emitted: string,
    values: readonly number[],
    lookupOf: ReadonlyMap<string, string>,
  ): SpecializedFunction {
    const staticParams = source.params.filter((param) => param.static);
    const known = new Map<string, Expression>();
    for (const [i, param] of staticParams.entries()) {
      known.set(param.name, { kind: 'literal', type: param.type as 'u32' | 'i32', value: values[i]! });
    }
    const rename = createNamer(new Set([emitted, ...lookupOf.values()]));
    const typeOf = (type: Type): Type =>
      isValueType(type) || type.kind === 'lookup' ? type : { ...type, length: lengthOf(source, type, known) };
    const params = source.params
      .filter((param) => !param.static)
      .map((param): Parameter => ({ ...param, name: rename(param.name), type: typeOf(param.type) }));
    const local = new Map<string, Type>();
    // Within the body, a local array has the length its declaration found, which may rest on local constants.
    const typeOfName = (name: Name): Type => local.get(name.name) ?? typeOf(name.type);
    const rewriter: Rewriter = {
      ranges: new Map(),
      fail: (position, expected, received, hint) => fault(source, position, expected, received, hint),
      typeOf: (name, type) => {
        const found = typeOf(type);
        local.set(name, found);
        return found;
      },
      rename,
      finish: (expression) => this.finish({ source, rename, typeOfName, lookupOf }, expression),
    };
    const body = rewriteBody(rewriter, source.body, known);
    const statics = Object.fromEntries(staticParams.map((param, i) => [param.name, values[i]!]));
    const lookups = Object.fromEntries([...lookupOf].map(([name, target]) => [rename(name), target]));
    return { ...source, params, body, emittedName: emitted, statics, lookups };
  }

  /** Renames what is left after folding, and specialises the functions it calls. */
  private finish(scope: Scope, folded: Expression): Expression {
    const { rename } = scope;
    const again = (expression: Expression): Expression => this.finish(scope, expression);
    if (folded.kind === 'name') {
      const { static: _, ...name } = folded;
      return { ...name, name: rename(name.name), type: scope.typeOfName(folded) };
    }
    checkConstants(scope, folded);
    if (folded.kind === 'lookup') {
      const target = scope.lookupOf.get(folded.lookup);
      const read = { ...folded, lookup: rename(folded.lookup), index: again(folded.index) };
      return target === undefined ? read : { ...read, function: target };
    }
    return folded.kind === 'call' ? this.finishCall(scope, folded) : mapOperands(folded, again);
  }

  private finishCall(scope: Scope, call: Call): Call {
    const callee = this.library.get(call.function);
    const statics: Record<string, number> = {};
    const lookups: Record<string, string> = {};
    const dynamic: Expression[] = [];
    const params = callee?.params ?? [];
    for (const [i, param] of params.entries()) {
      const argument = call.arguments[i]!;
      if (param.static) {
        statics[param.name] = argument.kind === 'literal' ? Number(argument.value) : Number.NaN;
        continue;
      }
      dynamic.push(this.finish(scope, argument));
      if (argument.kind === 'name' && !isValueType(param.type) && param.type.kind === 'lookup') {
        lookups[param.name] = scope.lookupOf.get(argument.name)!;
      }
    }
    const known = new Map(Object.entries(statics).map(([name, value]) => [name, asLiteral(value)]));
    for (const [i, param] of params.entries()) {
      const argument = call.arguments[i]!;
      if (callee && argument.kind === 'name')
        checkLength(scope, callee, call, param, scope.typeOfName(argument), known);
    }
    return { ...call, function: this.require(call.function, statics, lookups), arguments: dynamic };
  }
}

/** What finishing an expression of one function needs. */
interface Scope {
  readonly source: FunctionIr;
  rename(name: string): string;
  typeOfName(name: Name): Type;
  readonly lookupOf: ReadonlyMap<string, string>;
}

function asLiteral(value: number): Expression {
  return { kind: 'literal', type: 'u32', value };
}

function fault(source: FunctionIr, position: Position, expected: string, received: string, hint: string): never {
  const at = `${source.file}:${position.line}:${position.column}`;
  throw new KvforgeError('lowering', { at, expected, received, hint });
}

function staticOf(source: FunctionIr, param: Parameter, statics: Readonly<Record<string, number>>): number {
  const value = statics[param.name];
  const [low, high] = param.type === 'u32' ? [0, 2 ** 32 - 1] : [-(2 ** 31), 2 ** 31 - 1];
  if (value !== undefined && Number.isInteger(value) && value >= low && value <= high) return value;
  const expected = `${source.name} with a whole number in ${low} .. ${high} for its static ${param.name}`;
  return fault(source, source.position, expected, String(value ?? 'none'), `Pass statics: { ${param.name}: ... }.`);
}

function checkUnknown(source: FunctionIr, statics: Readonly<Record<string, number>>): void {
  const names = source.params.filter((param) => param.static).map((param) => param.name);
  const unknown = Object.keys(statics).find((name) => !names.includes(name));
  if (unknown === undefined) return;
  const expected =
    names.length > 0 ? `statics of ${source.name} (${names.join(', ')})` : `no statics for ${source.name}`;
  fault(source, source.position, expected, unknown, 'Remove it, or declare it Static<u32>.');
}

function lengthOf(source: FunctionIr, type: Type, known: ReadonlyMap<string, Expression>): Expression {
  if (isValueType(type) || type.kind === 'lookup') throw new TypeError('only arrays have a length');
  const length = fold(type.length, known);
  if (length.kind === 'literal' && Number(length.value) > 0) return length;
  const received = length.kind === 'literal' ? String(length.value) : 'one known only when the kernel runs';
  return fault(source, source.position, 'an array length above 0', received, 'Pass other statics.');
}

function checkLength(
  { source }: Scope,
  callee: FunctionIr,
  call: Call,
  param: Parameter,
  given: Type,
  known: ReadonlyMap<string, Expression>,
): void {
  if (isValueType(param.type) || param.type.kind !== 'array') return;
  const wanted = { ...param.type, length: lengthOf(callee, param.type, known) };
  if (describeType(wanted) === describeType(given)) return;
  const hint = `Pass an array of that length, or another static that fixes it.`;
  fault(source, call.at, `${describeType(wanted)} for ${param.name} of ${callee.name}`, describeType(given), hint);
}

/** What either target refuses, or leaves undefined, once a constant stands there. */
function checkConstants({ source, typeOfName }: Scope, expression: Expression): void {
  if (expression.kind === 'element' && expression.index.kind === 'literal') {
    const type = typeOfName(expression.array);
    const length =
      !isValueType(type) && type.kind === 'array' && type.length.kind === 'literal' ? Number(type.length.value) : 0;
    const index = Number(expression.index.value);
    if (index < 0 || index >= length) {
      const hint = 'Correct the index, or guard it with an if on the static.';
      fault(source, expression.at, `an index in 0 .. ${length - 1}`, String(index), hint);
    }
  }
  if (expression.kind !== 'binary' || expression.right.kind !== 'literal' || !expression.at) return;
  const right = Number(expression.right.value);
  if ((expression.operator === '/' || expression.operator === '%') && right === 0) {
    fault(source, expression.at, 'a divisor that is not 0', '0', 'Guard it with an if on the static.');
  }
  if ((expression.operator === '<<' || expression.operator === '>>') && (right < 0 || right > 31)) {
    fault(source, expression.at, 'a shift by 0 .. 31', String(right), 'Guard it with an if on the static.');
  }
}
