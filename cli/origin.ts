import { readFile } from 'node:fs/promises';
import { packagePath } from '../codegen/packageRoot.js';
import type { Origin } from '../runtime/bench/run.js';
import { commitOf } from './commit.js';
import { quoted } from './quoted.js';

/** What a document says of where it comes from. */
export async function originOf(command: string): Promise<Origin> {
  const { version } = JSON.parse(await readFile(packagePath('package.json'), 'utf8')) as { version: string };
  return { kvforge: version, commit: await commitOf(), command };
}

/**
 * A command as it can be given again, defaults included.
 *
 * @param options as commander gives them
 * @example
 * commandOf('bench', 'shard', { model: 'llama-3.1-8b', lockfile: false });
 * // 'kvforge bench shard --model llama-3.1-8b --no-lockfile'
 */
export function commandOf(command: string, schemes: string, options: object): string {
  const { set = [], ...others } = options as { readonly set?: readonly string[] };
  const given = Object.entries<unknown>(others).flatMap(([name, value]) => {
    const option = `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    if (value === false) return [`--no-${option.slice(2)}`];
    return value === true ? [option] : [option, quoted(String(value))];
  });
  const named = schemes === '' ? [] : [quoted(schemes)];
  return [`kvforge ${command}`, ...named, ...given, ...set.flatMap((each) => ['--set', quoted(each)])].join(' ');
}
