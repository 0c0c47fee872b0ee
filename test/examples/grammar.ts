import { ts } from 'ts-morph';

/**
 * How examples are written in documentation, and what they claim.
 *
 * - An example is what follows `@example` up to the next tag: TypeScript statements, as in a module. They may use what
 *   their own entry exports, what the other entries export, and the values of `values.ts` and `deviceValues.ts`.
 * - `EXPRESSION; // EXPECTED`, on one line, claims that both are equal. EXPECTED is an expression too, and may end in
 *   `, to rounding`. How values compare is said in `check.ts`.
 * - Any other comment is prose.
 * - In a sentence, `` `NAME(...) === EXPECTED` `` is an example of one such claim; for objects, `` `NAME(...)` is `EXPECTED` ``.
 */
export function examplesOf(documentation: string): string[] {
  const [prose = '', ...blocks] = documentation.split(/^@example\b/m);
  const inline = [...prose.matchAll(/`(\w+\([^`]+?)(?: === |` is `)([^`]+)`/g)].map(
    ([, left, right]) => `${left}; // ${right}`,
  );
  const tagged = blocks.map((block) => block.split(/^@\w/m)[0]!.trim());
  return inline.length > 0 ? [inline.join('\n'), ...tagged] : tagged;
}

const rounding = ', to rounding';

/** The text of an example with its claims as calls of `check`. */
export function withChecks(text: string): string {
  const file = parse(text);
  let [result, from] = ['', 0];
  for (const statement of file.statements) {
    if (!ts.isExpressionStatement(statement)) continue;
    const comment = ts
      .getTrailingCommentRanges(text, statement.end)
      ?.find(({ kind }) => kind === ts.SyntaxKind.SingleLineCommentTrivia);
    if (!comment) continue;
    const said = text.slice(comment.pos + 2, comment.end).trim();
    const expected = said.endsWith(rounding) ? said.slice(0, -rounding.length) : said;
    const options = expected === said ? '' : ', { rounded: true }';
    const claim = isExpression(expected)
      ? `check(${statement.expression.getText(file)}, ${expected}${options});`
      : `throw new Error(${JSON.stringify(`"// ${said}" follows an expression, and is none itself`)});`;
    result += text.slice(from, statement.getStart(file)) + claim;
    from = comment.end;
  }
  return result + text.slice(from);
}

/** Names that a text uses and does not declare at its top level; also some of those that it declares further in. */
export function freeNames(text: string): ReadonlySet<string> {
  const file = parse(text);
  const used = new Set<string>();
  const visit = (node: ts.Node): void => {
    if (ts.isIdentifier(node) && !isMemberName(node)) used.add(node.text);
    ts.forEachChild(node, visit);
  };
  visit(file);
  for (const statement of file.statements) for (const name of declaredBy(statement)) used.delete(name);
  return used;
}

/** Whether an identifier names a member of something, which no import provides. */
function isMemberName(node: ts.Identifier): boolean {
  const { parent } = node;
  return (
    (ts.isPropertyAccessExpression(parent) && parent.name === node) ||
    (ts.isPropertyAssignment(parent) && parent.name === node) ||
    (ts.isBindingElement(parent) && parent.propertyName === node)
  );
}

function declaredBy(statement: ts.Statement): string[] {
  if (ts.isFunctionDeclaration(statement)) return statement.name ? [statement.name.text] : [];
  if (ts.isVariableStatement(statement)) {
    return statement.declarationList.declarations.flatMap(({ name }) => boundBy(name));
  }
  if (!ts.isImportDeclaration(statement)) return [];
  const named = statement.importClause?.namedBindings;
  return named && ts.isNamedImports(named) ? named.elements.map(({ name }) => name.text) : [];
}

function boundBy(name: ts.BindingName): string[] {
  if (ts.isIdentifier(name)) return [name.text];
  return name.elements.flatMap((element) => (ts.isBindingElement(element) ? boundBy(element.name) : []));
}

function isExpression(text: string): boolean {
  return ts.transpileModule(`(${text}\n);`, { reportDiagnostics: true }).diagnostics?.length === 0;
}

function parse(text: string): ts.SourceFile {
  return ts.createSourceFile('example.ts', text, ts.ScriptTarget.ESNext, true);
}
