import { KvforgeError } from '../../../dsl/errors.js';
import { entryName, entryShape, type LockEntry, lockFormat } from './format.js';

const again = 'Tune again, or take the file as it was from version control.';

/**
 * The entries of a lock file.
 *
 * @param file its name, for errors
 * @throws KvforgeError `invalid-input` with the line, for a file that a merge or an editor has left damaged
 */
export function parseLock(text: string, file: string): readonly LockEntry[] {
  const refuse = (at: number | string, expected: string, received: string, hint: string): never => {
    const place = typeof at === 'number' ? `${file}:${lineOf(text, at)}` : `${file}, ${at}`;
    throw new KvforgeError('invalid-input', { at: place, expected, received, hint });
  };
  const marker = /^(<{7}|={7}|>{7}|\|{7})/m.exec(text);
  if (marker) {
    const hint =
      'Entries stand by themselves: keep the lines of both sides, remove the markers, and of two entries with the same name keep one.';
    refuse(marker.index, 'a file that is merged', `the conflict marker ${marker[0]}`, hint);
  }
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    const { message } = error as SyntaxError;
    refuse(faultOf(message, text), 'JSON', message, again);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    refuse(0, 'an object of entries', Array.isArray(parsed) ? 'an array' : String(parsed), again);
  }
  const seen = new Set<string>();
  for (const { name, at } of topNames(text)) {
    if (seen.has(name)) refuse(at, 'each entry once', `a second ${JSON.stringify(name)}`, 'Keep one of the two.');
    seen.add(name);
  }
  const { format, ...entries } = parsed as Record<string, unknown>;
  if (format !== lockFormat) {
    const received = format === undefined ? 'none' : JSON.stringify(format);
    refuse(
      'format',
      `${lockFormat} (of this version of kvforge)`,
      received,
      'Tune again with this version of kvforge.',
    );
  }
  return Object.entries(entries).map(([name, value]) => {
    const at = text.indexOf(JSON.stringify(name));
    const result = entryShape.safeParse(value);
    if (!result.success) {
      const [issue] = result.error.issues;
      const path = issue!.path.length > 0 ? `${issue!.path.join('.')}: ` : '';
      refuse(at, 'an entry as kvforge tune writes it', `${path}${issue!.message}`, again);
    }
    const entry = result.data!;
    if (entryName(entry) !== name) {
      refuse(at, `the name that its fields give, ${JSON.stringify(entryName(entry))}`, JSON.stringify(name), again);
    }
    return entry;
  });
}

/**
 * Where JSON.parse met a fault. Of an unexpected token V8 gives no position, but the text up to ten characters around it;
 * the first place that reads so is the one, as parsing went no further.
 */
function faultOf(message: string, text: string): number {
  const position = /position (\d+)/.exec(message);
  if (position) return Number(position[1]);
  const shown = /^Unexpected token '(.+?)', (\.\.\.)?"(.*?)"(?:\.\.\.)? is not valid JSON$/su.exec(message);
  if (!shown) return text.length;
  const [, token, cut, around] = shown;
  return text.indexOf(around!) + (cut ? 10 : around!.indexOf(token!));
}

function lineOf(text: string, position: number): number {
  return text.slice(0, position).split('\n').length;
}

/** Names of the outermost object with their positions, in a text that is JSON: parsing keeps the last of equal ones. */
function* topNames(text: string): Generator<{ name: string; at: number }> {
  let depth = 0;
  for (const { 0: token, index } of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]]/g)) {
    if (token === '{' || token === '[') depth++;
    else if (token === '}' || token === ']') depth--;
    else if (depth === 1 && /^\s*:/.test(text.slice(index + token.length, index + token.length + 64))) {
      yield { name: JSON.parse(token) as string, at: index };
    }
  }
}
