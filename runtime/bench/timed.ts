import { KvforgeError } from '../../dsl/errors.js';
import type { Device, Launch } from '../device.js';

/** Microseconds that a sample is to last at least where the device has a clock: thousands of the clock's steps. */
const sampleUs = 2000;
/** Launches that one sample holds, at most. */
const mostLaunches = 4096;

type Lists = readonly (readonly Launch[])[];

/** Rounds over the lists that make a sample long enough for the clock that times it. */
export async function enoughRounds(device: Device, lists: Lists): Promise<number> {
  // The host's clock is that of a device whose every launch lasts milliseconds.
  if (device.clock === 'host') return 1;
  const launches = lists.reduce((sum, list) => sum + list.length, 0);
  const most = Math.max(1, Math.floor(mostLaunches / launches));
  for (let rounds = 1; ; rounds = Math.min(most, rounds * 16)) {
    try {
      const [us] = await device.time(lists, { samples: 1, rounds });
      return Math.max(1, Math.min(most, Math.ceil(sampleUs / (us! * lists.length))));
    } catch (error) {
      // A clock of coarse steps does not advance in a short time.
      if (!(error instanceof KvforgeError && error.parts.at === 'rounds') || rounds === most) throw error;
    }
  }
}

/** Something whose time is taken again and again. */
export interface Timed {
  readonly name: string;
  /** Microseconds, as many as asked for. */
  sample(count: number): Promise<readonly number[]>;
}

/** Turns in which the samples are taken. */
const turns = 5;

/**
 * Takes the samples of all in turn, a few of each at a time, so that a clock that drifts drifts for all of them.
 *
 * @param samples of each, in all
 * @returns by name; fewer than asked for where one of them gave fewer
 */
export async function inTurn(
  timed: readonly Timed[],
  samples: number,
): Promise<ReadonlyMap<string, readonly number[]>> {
  const taken = new Map<string, number[]>(timed.map(({ name }) => [name, []]));
  for (let turn = 0; turn < turns; turn++) {
    const count = Math.floor(((turn + 1) * samples) / turns) - Math.floor((turn * samples) / turns);
    if (count === 0) continue;
    for (const { name, sample } of timed) taken.get(name)!.push(...(await sample(count)));
  }
  return taken;
}
