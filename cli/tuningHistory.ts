import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { KvforgeError } from '../dsl/errors.js';
import type { HistoryPoint } from '../runtime/report/benchCharts.js';

/** What of the document that `kvforge tune --json` prints a plot needs. */
const tuned = z.object({
  shapes: z.array(
    z.object({
      stage: z.string(),
      shape: z.string(),
      history: z.array(z.object({ seconds: z.number().nonnegative(), best: z.number().positive() })),
    }),
  ),
});

/**
 * How the searches of a tuner got on, from the file that holds what `kvforge tune --json` printed.
 *
 * @throws KvforgeError `wrong-use` for a file that cannot be read, or that holds something else
 */
export async function tuningHistory(file: string): Promise<readonly HistoryPoint[]> {
  const refuse = (expected: string, received: string, cause?: unknown): never => {
    const hint = 'Give a file that holds the output of kvforge tune --json.';
    throw new KvforgeError('wrong-use', { at: `--history ${file}`, expected, received, hint }, { cause });
  };
  const text = await readFile(file, 'utf8').catch((cause: NodeJS.ErrnoException) =>
    refuse('a file that can be read', cause.code ?? cause.message, cause),
  );
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    return refuse('JSON', (cause as Error).message, cause);
  }
  const document = tuned.safeParse(value);
  if (!document.success) {
    const [issue] = document.error.issues;
    return refuse('the document of kvforge tune', `${issue!.path.join('.') || 'the whole'}: ${issue!.message}`);
  }
  return document.data.shapes.flatMap(({ stage, shape, history }) =>
    history.map(({ seconds, best }) => ({ series: `${stage} ${shape}`, seconds, us: best })),
  );
}
