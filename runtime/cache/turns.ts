/**
 * Lets the calls on one cache run one after the other, in the order in which they were made: what one of them reads, none
 * of the others changes before it is done.
 */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();

  take<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work);
    // A call that failed does not keep the next one from its turn.
    this.#last = turn.catch(() => {});
    return turn;
  }
}
