import { KvforgeError } from '../../dsl/errors.js';
import type { Loadable } from '../../runtime/checkLoad.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { Judge } from '../../runtime/verify/judge.js';
import type { Shape } from './support.js';

/** Who may report a fault: a check of the device, by what it asks for, or the comparison with float64. */
export const reporters = {
  /** Two threads of a block at one word with no barrier between. */
  race: /expected a barrier between two uses/,
  /** A thread that comes before the one it waits for, or after one that does not wait: which, the order decides. */
  'race or unwritten': /expected a barrier between two uses|expected a read of bytes written before/,
  'block race': /expected no unordered use/,
  outside: /Guard the index/,
  unwritten: /expected a read of bytes written before/,
  'read-only': /expected only reads/,
  barrier: /all threads of the block at one __syncthreads/,
  lanes: /of the warp in the collective/,
  shift: /expected a shift by less than/,
  misaligned: /expected an address that is a multiple/,
  /** Text that the compiler of the target refuses. */
  compiler: /^compile-failed/,
  reference: /^reference/,
} as const;

export type Reporter = keyof typeof reporters;

/** One fault, planted in the text of one generated kernel. */
export interface Mutant {
  /** What is broken. */
  readonly name: string;
  /** Text that the kernel holds exactly once, and what stands there instead. */
  readonly text: string;
  readonly instead: string;
  /** Who reports it first. */
  readonly by: Reporter;
}

/** The faults of one kernel, and what every one of them is put through: the unbroken kernel must pass it. */
export interface Suspect {
  readonly stage: string;
  readonly entry: string;
  /** The kernels that it is of; plain ones if left out. */
  readonly shape?: Shape;
  /** Kernels that it is driven with. */
  readonly beside?: readonly string[];
  readonly drive: (kernels: LoadedKernels, judge: Judge) => Promise<void>;
  readonly mutants: readonly Mutant[];
}

/** The kernels with the fault in the text of `entry`. */
export function plant<Kernels extends Loadable<unknown>>(
  generated: Kernels,
  entry: string,
  { name, text, instead }: Mutant,
): Kernels {
  const { file } = generated.manifest.kernels.find((kernel) => kernel.entry === entry)!;
  const source = generated.files.get(file)!;
  const found = source.split(text).length - 1;
  if (found !== 1) {
    const how = found === 0 ? 'no longer holds' : `holds ${found} times`;
    throw new Error(`${file} ${how} what the fault "${name}" replaces: ${JSON.stringify(text)}`);
  }
  const files = new Map(generated.files);
  // A function, as `$` in a replacement would have a meaning.
  files.set(
    file,
    source.replace(text, () => instead),
  );
  return { ...generated, files };
}

/** What is reported of kernels that are loaded and driven; 'nothing' for good ones. */
export async function reportOf<Loaded>(
  load: () => Promise<Loaded>,
  drive: (kernels: Loaded, judge: Judge) => Promise<void>,
): Promise<string> {
  const judge = new Judge();
  try {
    await drive(await load(), judge);
  } catch (error) {
    if (!(error instanceof KvforgeError)) throw error;
    return `${error.code}: ${error.message}`;
  }
  const [first] = judge.failures;
  return first === undefined ? 'nothing' : `reference: ${first.what}: ${first.error}, at most ${first.bar} is allowed`;
}
