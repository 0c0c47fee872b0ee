/**
 * In which order the emulator runs the blocks of a grid, and the threads of a block between two barriers. CUDA promises
 * none, so a kernel whose result depends on it is wrong; each of these is the worst case of some kernel.
 *
 * - ascending: by index
 * - descending: the last first, so that block 0, warp 0 and lane 0 come last
 * - shuffled: drawn from the seed, anew at every switch; a warp may be left before its lanes have all stopped
 * - starved: ascending, but one is held back. Of threads, warp and lane of thread `seed % threads` run when no other
 *   warp, or no other lane of the warp, can. Of blocks, number `floor(seed / 2) % blocks` starts first, then stands still
 *   until all others have ended: at its first atomic on a binding, before it (odd seeds) or after it (even ones); in a
 *   kernel without atomics, at its first barrier
 *
 * Threads switch at collectives and barriers only, and of blocks none but the starved one stops before its end.
 */
export const orderNumber = { ascending: 0, descending: 1, shuffled: 2, starved: 3 } as const;

export type Order = keyof typeof orderNumber;

export interface Orders {
  readonly blocks: Order;
  readonly threads: Order;
}

export function ordersOf(order: Order | Partial<Orders> = 'ascending'): Orders {
  if (typeof order === 'string') return { blocks: order, threads: order };
  return { blocks: order.blocks ?? 'ascending', threads: order.threads ?? 'ascending' };
}
