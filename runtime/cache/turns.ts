/**
 * Lets the calls on one cache run one after the other, in the order in which they were made: what one of them reads, none
 * of the others changes before it is done.
 */
export class Turns {
  #last: Promise<unknown> = Promise.resolve();
  #begun = 0;

  /** Turns that have begun: what one of them knew still holds in the next, if that has the next number. */
  get begun(): number {
    return this.#begun;
  }

  take<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(() => {
      this.#begun++;
      return work();
    });
    // A call that failed does not keep the next one from its turn.
    this.#last = turn.catch(() => {});
    return turn;
  }
}
