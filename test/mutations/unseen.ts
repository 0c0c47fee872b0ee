import { without as withoutCuda } from './cuda/text.js';
import type { Mutant } from './mutant.js';
import type { Shape } from './support.js';
import { changed as changedWgsl, withoutBefore, without as withoutWgsl } from './wgsl/text.js';

/** A change of a kernel that nothing here reports, and why. */
export interface Unseen {
  readonly entry: string;
  readonly shape?: Shape;
  readonly mutant: Mutant;
  readonly why: string;
}

const other = 'no fault: other barriers lie between the two uses';

/**
 * The other side of the tables of faults: what no check can see, so that nobody believes otherwise. A row that gets
 * reported one day belongs into the tables of faults.
 */
export const unseen: Readonly<Record<'CUDA' | 'CUDA, tensor cores' | 'WGSL', readonly Unseen[]>> = {
  // What the emulator does not model: memory that is not coherent between fences (that a fence is missing is checked by
  // rule, not met as a wrong value), and local variables of g++ before 12, which start with what the register held.
  CUDA: [
    {
      entry: 'rotate_values',
      mutant: withoutCuda('all channels have been read before the next token takes their place'),
      why: 'no fault: a thread reads and replaces its own channel',
    },
    {
      entry: 'basis_orthonormalize',
      shape: 'anyRank',
      mutant: withoutCuda('the column is final before later columns are projected on it'),
      why: other,
    },
    { entry: 'append_token', mutant: withoutCuda('all have read the lengths before any of them changes'), why: other },
    {
      entry: 'append_token',
      mutant: withoutCuda("all codes have been read before the next vector's take their place"),
      why: other,
    },
    {
      entry: 'append_token',
      mutant: withoutCuda('they have been stored, and the oldest token has been read'),
      why: other,
    },
    {
      entry: 'append_token',
      mutant: withoutCuda('the token is in place before the lengths say so'),
      why: 'no fault in one launch: nobody reads the lengths again before the next one',
    },
  ],
  'CUDA, tensor cores': [
    {
      entry: 'attend',
      shape: 'full',
      mutant: withoutCuda('scratch is free for the next head'),
      why: 'no fault: a thread reads and replaces its own channels',
    },
    {
      entry: 'attend',
      shape: 'full',
      mutant: withoutCuda("every thread's fence comes before the count"),
      why: 'no fault: a barrier lies between the partials and the fence of the thread that counts',
    },
    {
      entry: 'attend',
      shape: 'full',
      mutant: withoutCuda('the merged values are read before anything overwrites them'),
      why: other,
    },
  ],
  // SwiftShader runs the threads of a workgroup four at a time, in order, from barrier to barrier; its memory is
  // coherent; and WebGPU fills workgroup memory with zeros, and keeps every index inside its array.
  WGSL: [
    {
      entry: 'rotate_values',
      mutant: withoutWgsl('The last stage is complete.', 2),
      why: 'four threads run in order: a channel comes from an earlier four, or from the same',
    },
    {
      entry: 'codebook_seed',
      mutant: withoutWgsl('The newest centroid is known.'),
      why: 'thread 0 writes it, and is among the first four',
    },
    {
      entry: 'codebook_seed',
      mutant: withoutWgsl('The draw is over before any distance changes again.'),
      why: other,
    },
    {
      entry: 'codebook_seed',
      mutant: changedWgsl('no storageBarrier', '    storageBarrier();\n', ''),
      why: 'the memory of a CPU is coherent',
    },
    {
      entry: 'basis_orthonormalize',
      mutant: changedWgsl('no storageBarrier', '  storageBarrier();\n', ''),
      why: 'the memory of a CPU is coherent',
    },
    {
      entry: 'decompress',
      shape: 'full',
      mutant: withoutWgsl('The pairs are turned.'),
      why: 'in the order in which SwiftShader runs threads, nobody comes too late',
    },
    {
      entry: 'attend',
      mutant: withoutBefore('codebook and query are loaded'),
      why: other,
    },
    {
      entry: 'attend',
      mutant: withoutBefore('every thread has read the last group: keys take its place'),
      why: 'in the order in which SwiftShader runs threads, nobody comes too late',
    },
    {
      entry: 'append_token',
      mutant: withoutWgsl('All codes have been read before those of the next vector take their place.', 2),
      why: other,
    },
    {
      entry: 'append_token',
      mutant: changedWgsl(
        'no barrier: The token is in place before the lengths say so.',
        '  // The token is in place before the lengths say so.\n  storageBarrier();\n',
        '',
      ),
      why: 'no fault in one launch: nobody reads the lengths again before the next one',
    },
    {
      entry: 'codebook_update',
      mutant: changedWgsl(
        'sums never initialised',
        'var sum = array<f32, CHANNELS>();',
        'var sum: array<f32, CHANNELS>;',
      ),
      why: 'no fault: WGSL fills a variable with zeros',
    },
  ],
};
