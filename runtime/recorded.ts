import { KvforgeError } from '../dsl/errors.js';
import { checkWhole, shown } from './cache/checkInput.js';
import { checkLaunchList } from './checks.js';
import type { Launch, Recording, TimeOptions } from './device.js';

/** @throws KvforgeError `wrong-use` unless it is a list of at least one launch */
export function checkRecorded(launches: unknown): void {
  checkLaunches(launches, 'launches');
}

/** Of one sample that a device is given as a whole: it holds about a kilobyte of host memory for each. */
const mostOfSample = 2 ** 18;

/** @throws KvforgeError `wrong-use` for no lists, an empty one, or counts that are not whole numbers of at least 1 */
export function checkTimed(lists: unknown, options: TimeOptions): void {
  if (!Array.isArray(lists) || lists.length === 0) {
    throw new KvforgeError('wrong-use', {
      at: 'lists',
      expected: 'at least one list of launches',
      received: Array.isArray(lists) ? 'none' : shown(lists),
      hint: 'Give one list, or several that do the same on different buffers.',
    });
  }
  for (const [index, list] of lists.entries()) checkLaunches(list, `lists[${index}]`);
  const { samples, rounds } = options ?? {};
  checkWhole(samples, { at: 'samples', least: 1, most: 2 ** 20, hint: 'Ask for one sample or more.' });
  checkWhole(rounds, { at: 'rounds', least: 1, most: 2 ** 20, hint: 'Run every list once or more.' });
}

/** @throws KvforgeError `wrong-use` for more launches than a device takes at once */
export function checkSample(launches: number): void {
  const [at, hint] = ['launches of a sample', 'Take more samples, of fewer rounds.'];
  checkWhole(launches, { at, least: 0, most: mostOfSample, hint });
}

function checkLaunches(launches: unknown, at: string): void {
  if (Array.isArray(launches) && launches.length > 0) {
    checkLaunchList(launches, at);
    return;
  }
  throw new KvforgeError('wrong-use', {
    at,
    expected: 'at least one launch',
    received: Array.isArray(launches) ? 'none' : shown(launches),
    hint: 'Leave out what runs nothing.',
  });
}

/** @throws KvforgeError `wrong-use` for a recording that was released */
export function checkRecording(live: boolean): void {
  if (live) return;
  throw new KvforgeError('wrong-use', {
    at: 'recording',
    expected: 'a live recording',
    received: 'one that was released',
    hint: 'Record the launches again.',
  });
}

/** A copy that later changes of the caller's list, launches and bindings do not reach. */
export function copied(launches: readonly Launch[]): readonly Launch[] {
  return launches.map(({ kernel, grid: [x, y, z], bindings }) => ({
    kernel,
    grid: [x, y, z],
    bindings: Object.fromEntries(Object.entries(bindings).map(([name, range]) => [name, { ...range }])),
  }));
}

/** A recording of a device that has no faster way: it runs the launches again, which checks their buffers each time. */
export class RepeatedLaunches implements Recording {
  readonly #run: (launches: readonly Launch[]) => Promise<void>;
  #launches: readonly Launch[] | undefined;

  constructor(launches: readonly Launch[], run: (launches: readonly Launch[]) => Promise<void>) {
    this.#launches = copied(launches);
    this.#run = run;
  }

  async run(): Promise<void> {
    checkRecording(this.#launches !== undefined);
    await this.#run(this.#launches!);
  }

  release(): void {
    this.#launches = undefined;
  }
}

/**
 * Samples by the host's clock, in microseconds of one list: each of `rounds` runs of all lists is waited for.
 *
 * @param run runs every list once
 */
export async function timeOnHost(
  lists: number,
  { samples, rounds }: TimeOptions,
  run: () => Promise<void>,
): Promise<readonly number[]> {
  await run();
  const times: number[] = [];
  for (let sample = 0; sample < samples; sample++) {
    const started = performance.now();
    for (let i = 0; i < rounds; i++) await run();
    times.push(((performance.now() - started) * 1000) / (rounds * lists));
  }
  return times;
}
