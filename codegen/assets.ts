import { KvforgeError } from '../dsl/errors.js';
import type { Target } from '../dsl/stage.js';
import type { FunctionIr } from './ir.js';

/** A compiled template. */
export type Template = (context: object) => string;

/** The schedules of one target, compiled once. */
export interface TemplateSet {
  /** Every name that the texts use, for themselves or for what they call: no device function may have it. */
  readonly names: ReadonlySet<string>;
  /** Files that go beside the kernels as they are, by name. */
  readonly files: ReadonlyMap<string, string>;
  render(name: string, context: object): string;
}

/** A lowered function of a user's file, or of one that it calls. */
export interface LoweredFunction {
  readonly ir: FunctionIr;
  /** Declared in the file itself. */
  readonly declared: boolean;
}

/**
 * What kernels are made from besides the scheme and the model. Node reads it from the package's folder; a browser has it
 * in its bundle. Nothing else differs between the two, so that they write the same bytes.
 */
export interface Assets {
  templates(language: Target['language']): Promise<TemplateSet>;
  /** The lowered device functions of the built-in codecs. */
  builtins(): Promise<readonly FunctionIr[]>;
  /** Lowers the file that a codec names as its source. */
  lower(source: string): Promise<readonly LoweredFunction[]>;
}

/**
 * A template set whose `render` refuses a kernel without a template.
 *
 * @example
 * templateSet('wgsl', { names, files: new Map(), compiled: new Map([['attend', () => 'fn attend() {}']]) }).render('attend', {});
 */
export function templateSet(
  language: Target['language'],
  {
    names,
    files,
    compiled,
  }: Pick<TemplateSet, 'names' | 'files'> & { readonly compiled: ReadonlyMap<string, Template> },
): TemplateSet {
  return {
    names,
    files,
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
