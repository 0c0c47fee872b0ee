import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import { workItemWords } from '../dsl/stages/attend.js';

/**
 * The work list of one attention launch: every (sequence, KV head) in `splits` neighbouring items. It holds no lengths,
 * so it stays valid while sequences grow; each block finds its tokens from the record in device memory.
 *
 * @example
 * planWork(geometry, 1, 2).length; // kvHeads * 2 * 4
 */
export function planWork(g: Geometry, sequences: number, splits: number): Uint32Array {
  if (!Number.isInteger(splits) || splits < 1 || splits > 1024) {
    throw new KvforgeError('wrong-use', {
      at: 'splits',
      expected: 'a whole number from 1 to 1024',
      received: String(splits),
      hint: 'Leave it out for the default.',
    });
  }
  const work = new Uint32Array(sequences * g.kvHeads * splits * workItemWords);
  let word = 0;
  for (let sequence = 0; sequence < sequences; sequence++) {
    for (let kvHead = 0; kvHead < g.kvHeads; kvHead++) {
      for (let split = 0; split < splits; split++) {
        work.set([sequence, kvHead, split, splits], word);
        word += workItemWords;
      }
    }
  }
  return work;
}
