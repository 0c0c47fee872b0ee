/** A process that loads a user's file and says whether that ends, and how; whatever the file does, it does here first. */
import { importUserFile, type PlainError, plainError } from './userModule.js';

export type ProbeReport = { readonly loaded: true } | { readonly loaded: false; readonly error: PlainError };

const [url, cache] = process.argv.slice(2);

async function probe(): Promise<ProbeReport> {
  process.setSourceMapsEnabled(true);
  try {
    callTables(await importUserFile(url!, cache!));
    return { loaded: true };
  } catch (error) {
    return { loaded: false, error: plainError(error) };
  }
}

/**
 * The level table of a codec is the user's code too, and is called later in the process that must not hang. What it
 * throws for a head dimension is the business of whoever asks for that one.
 */
function callTables(exports: Readonly<Record<string, unknown>>): void {
  for (const value of Object.values(exports)) {
    const levels = (value as { stream?: { levels?: unknown } } | null | undefined)?.stream?.levels;
    if (typeof levels !== 'function') continue;
    try {
      levels(64);
    } catch {}
  }
}

process.send!(await probe(), () => process.exit());
