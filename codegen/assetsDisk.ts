import type { Assets } from './assets.js';
import { lowerSource, readBuiltins } from './builtins.js';
import { loadTemplates } from './templates.js';

/** The assets of the installed package, for Node. */
export const diskAssets: Assets = { templates: loadTemplates, builtins: readBuiltins, lower: lowerSource };
