import { dirname, relative, resolve, sep } from 'node:path';
import { KvforgeError } from '../dsl/errors.js';
import * as dsl from '../dsl/index.js';
import type { ScalarScheme } from '../dsl/scheme.js';
import type { Mixed, MixedLayer, MixSearch } from '../runtime/mix/search.js';

/** Where a written file takes a scheme from. */
export interface SchemeImport {
  /** What the file calls it. */
  readonly local: string;
  readonly exported: string;
  readonly from: string;
}

/**
 * How a file of schemes imports each candidate.
 *
 * @param names as the user gave them
 * @param schemes what they stand for
 * @param out the file that imports
 * @throws KvforgeError `wrong-use` for a user's file whose export is not named
 */
export function importsOf(
  names: readonly string[],
  schemes: readonly ScalarScheme[],
  out: string,
): ReadonlyMap<ScalarScheme, SchemeImport> {
  const exports = Object.entries(dsl as Record<string, unknown>);
  return new Map(
    schemes.map((scheme, index): [ScalarScheme, SchemeImport] => {
      const name = names[index]!;
      const preset = exports.find(([, value]) => value === scheme)?.[0];
      if (preset !== undefined) return [scheme, { local: preset, exported: preset, from: 'kvforge' }];
      const [, path, exported] = /^(.*)#([A-Za-z_$][\w$]*)$/.exec(name) ?? [];
      if (path === undefined || exported === undefined) {
        throw new KvforgeError('wrong-use', {
          at: '--schemes',
          expected: 'files as file.ts#name, where --out is a .ts file that imports them',
          received: name,
          hint: 'Write #default for the default export.',
        });
      }
      const steps = relative(dirname(resolve(out)), resolve(path))
        .split(sep)
        .join('/');
      return [scheme, { local: `own${index + 1}`, exported, from: steps.startsWith('.') ? steps : `./${steps}` }];
    }),
  );
}

export interface MixModule {
  readonly model: string;
  /** What the activations were recorded from. */
  readonly source: string;
  readonly command: string;
  readonly budget: number;
  readonly search: MixSearch;
  readonly best: Mixed;
  readonly imports: ReadonlyMap<ScalarScheme, SchemeImport>;
}

/** The text of a file that exports a scheme for every layer, and all of them as `layers`. */
export function mixModule({ model, source, command, budget, search, best, imports }: MixModule): string {
  const used = new Set(best.layers.flatMap(({ keys, values }) => [imports.get(keys)!, imports.get(values)!]));
  const fromPackage = [...used].filter(({ from }) => from === 'kvforge').map(({ local }) => local);
  const bytes = best.bytesPerToken.toFixed(1);
  return [
    ...comment(
      `Keys and values of ${model} by layer: ${bytes} of ${budget} bytes a token and layer.`,
      `Attention error ${best.together.toFixed(4)}, predicted ${best.predicted.toFixed(4)}: measured on ${source}.`,
      command,
    ),
    `import { ${[...fromPackage, 'type LayerChoice', 'mix'].sort(byName).join(', ')} } from 'kvforge';`,
    ...[...used]
      .filter(({ from }) => from !== 'kvforge')
      .map(({ local, exported, from }) => `import { ${exported} as ${local} } from ${quote(from)};`),
    '',
    ...best.layers.flatMap((layer) => [...layerLines(layer, search, imports), '']),
    '/** Every layer that was recorded. */',
    'export const layers: readonly LayerChoice[] = [',
    ...best.layers.map(({ layer }) => `  { layer: ${layer}, scheme: layer${layer} },`),
    '];',
    '',
  ].join('\n');
}

function layerLines(
  { layer, tokens, keys, values, bytes, keysError, valuesError, together }: MixedLayer,
  { sinks, window }: MixSearch,
  imports: MixModule['imports'],
): readonly string[] {
  const named = `mix-${keys.name}-${values.name}`;
  // A name has 40 characters at most.
  const name = named.length <= 40 ? named : `mix-layer${layer}`;
  const mixed = `mix({ name: ${quote(name)}, keys: ${imports.get(keys)!.local}, values: ${imports.get(values)!.local} })`;
  const own = { sinks: Math.max(keys.sinks, values.sinks), window: Math.max(keys.window, values.window) };
  const ends = [
    ...(own.sinks === sinks ? [] : [`sinks: ${sinks}`]),
    ...(own.window === window ? [] : [`window: ${window}`]),
  ];
  const errors = `attention error ${together.toFixed(4)}: of keys ${keysError.toFixed(4)}, of values ${valuesError.toFixed(4)}`;
  const stated = `/** ${(bytes / tokens).toFixed(1)} bytes a token; ${errors}. */`;
  if (ends.length === 0) return [stated, `export const layer${layer} = ${mixed};`];
  return [stated, `export const layer${layer} = {`, `  ...${mixed},`, ...ends.map((end) => `  ${end},`), '};'];
}

/** As comments, whatever a file of activations says of itself. */
const comment = (...lines: readonly string[]) =>
  lines.map((line) => `// ${line.replace(/[\p{Cc}\u2028\u2029]/gu, ' ')}`);

const quote = (text: string) => `'${text.replace(/[\\']/g, '\\$&')}'`;

/** As editors sort imports: whatever the kind, without regard to case. */
const byName = (a: string, b: string) => {
  const [first, second] = [a, b].map((name) => name.replace('type ', '').toLowerCase()) as [string, string];
  return first < second ? -1 : first > second ? 1 : 0;
};
