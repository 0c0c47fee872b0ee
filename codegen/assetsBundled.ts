import type Handlebars from 'handlebars';
import runtime from 'handlebars/runtime.js';
import { KvforgeError } from '../dsl/errors.js';
import { type Assets, type Template, type TemplateSet, templateSet } from './assets.js';
import { builtins, names, partials, schedules } from './browserAssets.js';

let wgsl: TemplateSet | undefined;

/** Templates come precompiled: no compiler in the bundle, and no `new Function`, which a page's policy may forbid. */
function wgslTemplates(): TemplateSet {
  // Its types name nothing.
  const handlebars = (runtime as unknown as typeof Handlebars).create();
  // A precompiled template calls partials by name.
  for (const [name, spec] of Object.entries(partials)) handlebars.registerPartial(name, handlebars.template(spec));
  const compiled = new Map<string, Template>(
    Object.entries(schedules).map(([name, spec]) => [name, handlebars.template(spec)]),
  );
  return templateSet('wgsl', { names: new Set(names), files: new Map(), compiled });
}

/** The assets that a browser has in its bundle: WGSL, and the built-in codecs. */
export const bundledAssets: Assets = {
  async templates(language) {
    if (language !== 'wgsl') {
      throw new KvforgeError('missing-capability', {
        at: 'target.language',
        expected: 'wgsl in a browser',
        received: language,
        hint: 'Generate these kernels in Node.',
      });
    }
    wgsl ??= wgslTemplates();
    return wgsl;
  },
  async builtins() {
    return builtins;
  },
  async lower(source) {
    throw new KvforgeError('missing-capability', {
      at: 'stream.source',
      expected: 'a codec of built-in device functions in a browser',
      received: source,
      hint: 'Generate its kernels in Node, where that file can be lowered.',
    });
  },
};
