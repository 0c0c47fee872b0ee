import { KvforgeError } from '../../dsl/errors.js';
import type { Scheme } from '../../dsl/scheme.js';

function isScheme(value: unknown): value is Scheme {
  return typeof value === 'object' && value !== null && 'keys' in value && 'values' in value;
}

/**
 * The scheme that is meant of what a file exports.
 *
 * @param name the export after `#`; without one, the default export or the only scheme
 * @throws KvforgeError `invalid-scheme`, its place the file
 */
export function pick(exports: Readonly<Record<string, unknown>>, name: string | undefined, path: string): Scheme {
  const refuse = (expected: string, received: string, hint: string): never => {
    throw new KvforgeError('invalid-scheme', { at: path, expected, received, hint });
  };
  if (name !== undefined) {
    const chosen = exports[name];
    if (isScheme(chosen)) return chosen;
    const names = Object.keys(exports).filter((key) => isScheme(exports[key]));
    return refuse(
      `a scheme exported as ${name}`,
      names.join(', ') || 'no scheme',
      'A scheme is what defineScheme({...}) returns.',
    );
  }
  if (isScheme(exports.default)) return exports.default;
  const schemes = Object.entries(exports).filter(([, value]) => isScheme(value));
  if (schemes.length === 1) return schemes[0]![1] as Scheme;
  if (schemes.length === 0) {
    const promised = Object.keys(exports).find((key) => exports[key] instanceof Promise);
    if (promised !== undefined) {
      refuse('an exported scheme', `a promise as ${promised}`, 'Write await before what is exported.');
    }
    return refuse(
      'an exported scheme',
      Object.keys(exports).length === 0 ? 'no exports' : `only ${Object.keys(exports).join(', ')}`,
      'Write export default defineScheme({...}).',
    );
  }
  const names = schemes.map(([key]) => key);
  return refuse('one scheme', names.join(', '), `Pick one by its name: file.ts#${names[0]}.`);
}
