import { readdir, readFile } from 'node:fs/promises';
import type Handlebars from 'handlebars';
import { KvforgeError } from '../dsl/errors.js';
import { packagePath } from './packageRoot.js';

/** The schedules of one target, compiled once. */
export interface TemplateSet {
  /** Every name that the texts use, for themselves or for what they call: no device function may have it. */
  readonly names: ReadonlySet<string>;
  render(name: string, context: object): string;
}

/**
 * The names in the texts of templates, without those of handlebars and of comments.
 *
 * @example
 * [...namesIn(['fn level_at(i: u32) -> f32 { return {{fn.value}}(i); }  // a level'])]; // fn, level_at, i, u32, f32, return
 */
export function namesIn(texts: readonly string[]): ReadonlySet<string> {
  const words = texts.flatMap((text) =>
    text
      .replace(/\/\/.*|\/\*[\s\S]*?\*\//g, ' ')
      // `first_{{bits}}` is no name, but nor is it two.
      .replace(/\w*\{\{\{?[\s\S]*?\}\}\}?\w*/g, ' ')
      .match(/[A-Za-z_]\w*/g),
  );
  return new Set(words.filter((word) => word !== null));
}

const loaded = new Map<string, Promise<TemplateSet>>();

/**
 * Loads `templates/<language>`; handlebars is imported here and nowhere else, so that `--help` stays instant.
 *
 * @throws KvforgeError `missing-capability` when the package is incomplete
 */
export function loadTemplates(language: 'cuda' | 'wgsl'): Promise<TemplateSet> {
  const known = loaded.get(language);
  if (known) return known;
  const loading = load(language);
  loaded.set(language, loading);
  return loading;
}

async function load(language: string): Promise<TemplateSet> {
  const handlebars = ((await import('handlebars')) as { default: typeof Handlebars }).default.create();
  const folder = packagePath('templates', language);
  const read = async (directory: string) => {
    const names = await readdir(directory).catch(() => []);
    const files = names.filter((name) => name.endsWith('.hbs'));
    return Promise.all(
      files.map(
        async (name) => [name.slice(0, -'.hbs'.length), await readFile(`${directory}/${name}`, 'utf8')] as const,
      ),
    );
  };
  const [partials, schedules] = [await read(`${folder}/partials`), await read(folder)];
  const prelude = language === 'cuda' ? [await readFile(`${folder}/prelude.cuh`, 'utf8')] : [];
  for (const [name, text] of partials) handlebars.registerPartial(name, text);
  // Strict: a name that the context lacks is a mistake in the template, not an empty string in a kernel.
  const compiled = new Map(
    schedules.map(([name, text]) => [name, handlebars.compile(text, { noEscape: true, strict: true })]),
  );
  return {
    names: namesIn([...partials, ...schedules].map(([, text]) => text).concat(prelude)),
    render(name, context) {
      const template = compiled.get(name);
      if (!template) {
        throw new KvforgeError('missing-capability', {
          at: `templates/${language}/${name}.hbs`,
          expected: 'a template for this kernel',
          received: 'no such file',
          hint: 'Reinstall kvforge, or add the template.',
        });
      }
      return template(context);
    },
  };
}
