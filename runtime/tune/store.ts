import { randomBytes } from 'node:crypto';
import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { sha256 } from '../../codegen/sha256.js';
import type { Target } from '../../dsl/stage.js';

/**
 * Version of how times are taken. Raise it when samples of the old way and of the new one cannot be compared: the old
 * ones are not found any more.
 */
export const timingMethod = 2;

/** All that a time depends on. */
export interface TimingKey {
  /** SHA-256 of the texts of the stage's kernels, and of the files they include. */
  readonly source: string;
  /** SHA-256 of the scheme and of the model's shape. */
  readonly sizes: string;
  readonly target: Target;
  readonly device: string;
  readonly driver: string;
  readonly stage: string;
  readonly shape: string;
  readonly splits?: number | undefined;
}

const samples = z.array(z.number().positive()).min(1);

const recordShape = z.discriminatedUnion('status', [
  z.strictObject({
    status: z.literal('timed'),
    /** Microseconds, after the results were found right. */
    samples,
    /** Taken again, in turns with the other best candidates. */
    finals: samples.optional(),
    /** Largest error of an attention output, over its largest magnitude; absent where the stage is judged otherwise. */
    error: z.number().nonnegative().optional(),
    /** Bytes that one run reads at least once. */
    bytes: z.number().nonnegative(),
    /** The inputs rotated through more than the device's cache holds. */
    cold: z.boolean(),
    /** Seconds that it took, compilation and checks included. */
    seconds: z.number().nonnegative(),
  }),
  z.strictObject({
    status: z.enum(['wrong', 'refused', 'crashed', 'hung']),
    reason: z.string(),
    seconds: z.number().nonnegative(),
  }),
]);

/** What became of one candidate. */
export type TimingRecord = z.infer<typeof recordShape>;
export type TimedRecord = Extract<TimingRecord, { status: 'timed' }>;

const fileShape = z.strictObject({ key: z.string(), record: recordShape });

/** Every time that was ever taken, one file each. */
export class TimingStore {
  readonly #folder: string;

  /** @param folder that exists, and that nobody else may write to */
  constructor(folder: string) {
    this.#folder = folder;
  }

  /** The record of a key; undefined without one, and for a file that is not what `write` writes: it is measured again. */
  async read(key: TimingKey): Promise<TimingRecord | undefined> {
    const name = await nameOf(key);
    const text = await readFile(join(this.#folder, `${name}.json`), 'utf8').catch(() => undefined);
    if (text === undefined) return undefined;
    try {
      const file = fileShape.safeParse(JSON.parse(text));
      return file.success && file.data.key === name ? file.data.record : undefined;
    } catch {
      return undefined;
    }
  }

  async write(key: TimingKey, record: TimingRecord): Promise<void> {
    const name = await nameOf(key);
    const own = join(this.#folder, `.${name}-${randomBytes(6).toString('hex')}.tmp`);
    try {
      await writeFile(own, `${JSON.stringify({ key: name, record }, null, 1)}\n`, { flag: 'wx' });
      await rename(own, join(this.#folder, `${name}.json`));
    } catch (error) {
      await rm(own, { force: true });
      throw error;
    }
  }
}

function nameOf({ source, sizes, target, device, driver, stage, shape, splits }: TimingKey): Promise<string> {
  const flags = Object.entries(target).sort(([a], [b]) => (a < b ? -1 : 1));
  const parts = [timingMethod, source, sizes, flags, device, driver, stage, shape, splits ?? null];
  return sha256(new TextEncoder().encode(JSON.stringify(parts)));
}
