import { readdir, readFile } from 'node:fs/promises';
import type Handlebars from 'handlebars';
import type { Target } from '../dsl/stage.js';
import { type TemplateSet, templateSet } from './assets.js';
import { packagePath } from './packageRoot.js';

export type { TemplateSet } from './assets.js';

type Language = Target['language'];

/** Strict: a name that the context lacks is a mistake in the template, not an empty string in a kernel. */
export const templateOptions = { noEscape: true, strict: true } as const;

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

/** `templates/<language>` as it lies on disk, by name without the ending `.hbs`. */
export interface TemplateTexts {
  readonly partials: ReadonlyMap<string, string>;
  readonly schedules: ReadonlyMap<string, string>;
  /** Files that go beside the kernels as they are. */
  readonly files: ReadonlyMap<string, string>;
  /** See `TemplateSet.names`. */
  readonly names: ReadonlySet<string>;
}

/**
 * Reads `templates/<language>`.
 *
 * @example
 * (await readTemplates('wgsl')).schedules.get('attend');
 */
export async function readTemplates(language: Language): Promise<TemplateTexts> {
  const folder = packagePath('templates', language);
  const read = async (directory: string) => {
    const names = await readdir(directory).catch(() => []);
    const files = names.filter((name) => name.endsWith('.hbs')).sort();
    return new Map(
      await Promise.all(
        files.map(
          async (name) => [name.slice(0, -'.hbs'.length), await readFile(`${directory}/${name}`, 'utf8')] as const,
        ),
      ),
    );
  };
  const [partials, schedules] = await Promise.all([read(`${folder}/partials`), read(folder)]);
  const prelude = 'prelude.cuh';
  const files = new Map(
    language === 'cuda' ? [[prelude, await readFile(packagePath('templates', 'cuda', prelude), 'utf8')]] : [],
  );
  return {
    partials,
    schedules,
    files,
    names: namesIn([partials, schedules, files].flatMap((map) => [...map.values()])),
  };
}

const loaded = new Map<string, Promise<TemplateSet>>();

/**
 * Loads `templates/<language>`; handlebars is imported here and nowhere else in Node, so that `--help` stays instant.
 *
 * @throws KvforgeError `missing-capability` when the package is incomplete
 * @example
 * (await loadTemplates('wgsl')).render('copy_exact', context);
 */
export function loadTemplates(language: Language): Promise<TemplateSet> {
  const known = loaded.get(language);
  if (known) return known;
  const loading = load(language);
  loaded.set(language, loading);
  return loading;
}

async function load(language: Language): Promise<TemplateSet> {
  const [module, { partials, schedules, files, names }] = await Promise.all([
    import('handlebars') as Promise<{ default: typeof Handlebars }>,
    readTemplates(language),
  ]);
  const handlebars = module.default.create();
  for (const [name, text] of partials) handlebars.registerPartial(name, text);
  const compiled = new Map([...schedules].map(([name, text]) => [name, handlebars.compile(text, templateOptions)]));
  return templateSet(language, { names, files, compiled });
}
