/** A process that loads a user's file and says whether that ends, and how; whatever the file does, it does here first. */
import { importUserFile, type PlainError, plainError } from './userModule.js';

export type ProbeReport = { readonly loaded: true } | { readonly loaded: false; readonly error: PlainError };

const [url, cache] = process.argv.slice(2);

async function probe(): Promise<ProbeReport> {
  process.setSourceMapsEnabled(true);
  try {
    await importUserFile(url!, cache!);
    return { loaded: true };
  } catch (error) {
    return { loaded: false, error: plainError(error) };
  }
}

process.send!(await probe(), () => process.exit());
