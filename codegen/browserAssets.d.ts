/** What `scripts/bundleAssets.ts` writes into the built package: the assets of a browser, as a module. */
import type { FunctionIr } from './ir.js';

/** The lowered device functions of the built-in codecs. */
export declare const builtins: readonly FunctionIr[];
/** See `TemplateSet.names`. */
export declare const names: readonly string[];
/** Templates as `handlebars.precompile` gives them, by name. */
export declare const partials: Readonly<Record<string, object>>;
export declare const schedules: Readonly<Record<string, object>>;
