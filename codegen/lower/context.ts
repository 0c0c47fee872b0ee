import type { FunctionDeclaration, Node, Project } from 'ts-morph';
import { KvforgeError } from '../../dsl/errors.js';
import {
  type Expression,
  type FunctionIr,
  operandsOf,
  type Parameter,
  type Position,
  type Type,
  type ValueType,
} from '../ir.js';
import { type Entity, excerpt, findEntity, type Morph } from './files.js';
import type { Refusal } from './unsupported.js';

/** How early a value is known: when the kernel is generated, at each turn of a static loop, or when it runs. */
export type Level = 'static' | 'loop' | 'dynamic';

export interface Local {
  readonly type: Type;
  readonly role: 'parameter' | 'const' | 'let' | 'loop variable';
  readonly level: Level;
}

export interface Header {
  readonly params: readonly Parameter[];
  readonly returns: ValueType | 'void';
}

/** What lowering one run over some files shares. */
export interface Session {
  readonly morph: Morph;
  readonly project: Project;
  labelOf(path: string): string;
  /** The device functions that ship lowered with the package. */
  readonly builtins: ReadonlyMap<string, FunctionIr>;
  /** The signature of a device function, which is then lowered too. */
  require(declaration: FunctionDeclaration, from: Node): Header;
}

/** What lowering one function knows: its names, by scope, and where faults are reported. */
export class Context {
  readonly scopes: Map<string, Local>[] = [new Map()];
  /** Words that Node holds unsigned because the source says `u32(...)` around them. */
  readonly wrapped = new WeakSet<object>();

  constructor(
    readonly session: Session,
    readonly declaration: FunctionDeclaration,
    public returns: ValueType | 'void' = 'void',
  ) {}

  get morph(): Morph {
    return this.session.morph;
  }

  positionOf(node: Node): Position {
    const { line, column } = node.getSourceFile().getLineAndColumnAtPos(node.getStart());
    return { line, column };
  }

  fail(node: Node, expected: string, received: string, hint: string): never {
    const { line, column } = this.positionOf(node);
    const at = `${this.session.labelOf(node.getSourceFile().getFilePath())}:${line}:${column}`;
    throw new KvforgeError('lowering', { at, expected, received, hint });
  }

  refuse(node: Node, refusal: Refusal): never {
    return this.fail(node, refusal.expected, refusal.received, refusal.hint);
  }

  local(name: string): Local | undefined {
    for (let depth = this.scopes.length - 1; depth >= 0; depth--) {
      const found = this.scopes[depth]?.get(name);
      if (found) return found;
    }
    return undefined;
  }

  outer(name: string): Entity | undefined {
    return findEntity(this.session.project, this.declaration.getSourceFile(), name);
  }

  declare(node: Node, name: string, local: Local): void {
    const outer = this.local(name) ? 'a name of the same function' : this.outer(name) ? 'a top-level name' : undefined;
    if (outer) {
      this.fail(node, 'a name of its own', `${name}, which hides ${outer}`, `Rename this ${name}.`);
    }
    this.scopes.at(-1)?.set(name, local);
  }

  within<T>(body: () => T): T {
    this.scopes.push(new Map());
    try {
      return body();
    } finally {
      this.scopes.pop();
    }
  }

  levelOf(expression: Expression): Level {
    if (expression.kind === 'name') return this.local(expression.name)?.level ?? 'dynamic';
    if (['element', 'lookup', 'call'].includes(expression.kind)) return 'dynamic';
    const levels = operandsOf(expression).map((operand) => this.levelOf(operand));
    return levels.includes('dynamic') ? 'dynamic' : levels.includes('loop') ? 'loop' : 'static';
  }

  /** `x` as a message quotes it. */
  quote(node: Node): string {
    return `\`${excerpt(node)}\``;
  }
}
