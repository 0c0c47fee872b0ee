import { KvforgeError } from '../../dsl/errors.js';

/** Values of GPUBufferUsage and GPUMapMode, which are globals in browsers only. */
const MAP_READ = 0x1;
const COPY_SRC = 0x4;
const COPY_DST = 0x8;
const QUERY_RESOLVE = 0x200;

/** Two timestamps of 64 bits. */
const BYTES = 16;

/** Two timestamps of a device with `timestamp-query`: command buffers to put before and after what is timed. */
export class Stopwatch {
  readonly #gpu: GPUDevice;
  readonly #queries: GPUQuerySet;
  readonly #resolved: GPUBuffer;
  readonly #staging: GPUBuffer;

  constructor(gpu: GPUDevice) {
    this.#gpu = gpu;
    this.#queries = gpu.createQuerySet({ type: 'timestamp', count: 2 });
    this.#resolved = gpu.createBuffer({ size: BYTES, usage: QUERY_RESOLVE | COPY_SRC });
    this.#staging = gpu.createBuffer({ size: BYTES, usage: MAP_READ | COPY_DST });
  }

  start(): GPUCommandBuffer {
    const encoder = this.#gpu.createCommandEncoder();
    encoder.beginComputePass({ timestampWrites: { querySet: this.#queries, endOfPassWriteIndex: 0 } }).end();
    return encoder.finish();
  }

  stop(): GPUCommandBuffer {
    const encoder = this.#gpu.createCommandEncoder();
    encoder.beginComputePass({ timestampWrites: { querySet: this.#queries, endOfPassWriteIndex: 1 } }).end();
    encoder.resolveQuerySet(this.#queries, 0, 2, this.#resolved, 0);
    encoder.copyBufferToBuffer(this.#resolved, 0, this.#staging, 0, BYTES);
    return encoder.finish();
  }

  /**
   * Microseconds between the two, once both were submitted.
   *
   * @throws KvforgeError `wrong-use` when the clock did not advance: it has steps, and zero would be no measurement
   */
  async read(rounds: number): Promise<number> {
    await this.#staging.mapAsync(MAP_READ);
    const [first, last] = new BigUint64Array(this.#staging.getMappedRange().slice(0));
    this.#staging.unmap();
    if (last! > first!) return Number(last! - first!) / 1000;
    throw new KvforgeError('wrong-use', {
      at: 'rounds',
      expected: 'enough for the clock of the device to advance',
      received: `${rounds}, in which it did not`,
      hint: 'Raise rounds, or put more launches into a list.',
    });
  }

  release(): void {
    this.#queries.destroy();
    this.#resolved.destroy();
    this.#staging.destroy();
  }
}
