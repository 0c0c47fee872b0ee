import { KvforgeError } from '../../dsl/errors.js';
import type { Device, Launch } from '../device.js';

type Lists = readonly (readonly Launch[])[];

/** How often lists are run for one sample, and how many samples are taken. */
export interface Plan {
  readonly rounds: number;
  readonly samples: number;
}

/** Microseconds between two readings of a clock: of CUDA events, of WebGPU timestamps on NVIDIA, of the host around a wait. */
function quantumOf({ clock, target }: Device): number {
  if (clock === 'host') return 20;
  return target === 'cuda' ? 1 : 66;
}

/** A sample is at least so many steps of the clock, which then stand for a hundredth of it. */
const stepsOfSample = 100;
const mostRounds = 2 ** 16;
/** Microseconds that the samples of one candidate may take together, where a list does not take longer. */
const timeOfSamples = 300_000;
const mostSamples = 15;
const leastSamples = 3;

/** Finds rounds and samples for lists by running them: enough for the clock, and no more samples than time allows. */
export async function planSamples(device: Device, lists: Lists): Promise<Plan> {
  const wanted = stepsOfSample * quantumOf(device);
  let rounds = 1;
  for (;;) {
    const microseconds = await once(device, lists, rounds);
    const taken = microseconds === undefined ? 0 : microseconds * lists.length * rounds;
    if (taken >= wanted || rounds >= mostRounds) {
      const samples = Math.floor(timeOfSamples / Math.max(taken, 1));
      return { rounds, samples: Math.max(leastSamples, Math.min(mostSamples, samples)) };
    }
    // A tenth more than what just reaches it; a clock that stood still says nothing but that it is too little.
    const factor = taken === 0 ? 8 : (1.1 * wanted) / taken;
    rounds = Math.min(mostRounds, Math.max(rounds + 1, Math.ceil(rounds * factor)));
  }
}

/** One sample; undefined where the device's clock did not advance. */
async function once(device: Device, lists: Lists, rounds: number): Promise<number | undefined> {
  try {
    const [sample] = await device.time(lists, { samples: 1, rounds });
    return sample;
  } catch (error) {
    if (error instanceof KvforgeError && error.code === 'wrong-use' && error.parts.at === 'rounds') return undefined;
    throw error;
  }
}
