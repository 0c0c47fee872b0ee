import { type ErrorCode, type ErrorParts, KvforgeError } from '../dsl/errors.js';

/** Runs `make`; an error it throws gets the file in front of the place. */
export function inFile<T>(file: string, make: () => T): T {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'KvforgeError') throw error;
    const { code, parts } = error as unknown as { code: ErrorCode; parts: ErrorParts };
    throw new KvforgeError(code, { ...parts, at: `${file}: ${parts.at}` }, { cause: error });
  }
}
