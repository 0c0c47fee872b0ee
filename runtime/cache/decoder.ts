import { KvforgeError } from '../../dsl/errors.js';
import { attendLaunches, chosenSplits } from '../attendLaunches.js';
import type { BufferRange, DeviceBuffer, Recording } from '../device.js';
import { checkHalf } from '../halfBits.js';
import { checkSplits } from './checkInput.js';
import { checkValues } from './checkPrompt.js';
import { type GrowingLengths, grownWithin } from './lengths.js';
import type { CacheMemory } from './memory.js';
import type { Turns } from './turns.js';

export interface DecoderOptions {
  /** Blocks that share one row of tokens, the same in every step; chosen for the cache's capacity if left out. */
  readonly splits?: number;
}

/**
 * Device memory that a step reads and writes. It is the decoder's: others may fill and read it, not release it. What goes
 * in lies in parts of one buffer, as each copy to a device costs more than its bytes.
 */
export interface DecoderBuffers {
  /** f16 bits [sequences][KV heads][head dim] of the next token of every sequence, after RoPE at its position. */
  readonly keys: Required<BufferRange>;
  /** Empty for latents. */
  readonly values: Required<BufferRange>;
  /** f16 bits [sequences][heads][head dim], after RoPE. */
  readonly query: Required<BufferRange>;
  /** float32 [sequences][heads][head dim] */
  readonly output: DeviceBuffer;
}

/** A range that is bound starts on a multiple of so many bytes. */
const rangeAlignment = 256;

/** What a decoder does with a cache, which knows its open decoders: they end with it. */
export interface DecoderHost {
  readonly memory: CacheMemory;
  readonly turns: Turns;
  readonly decoders: Set<Decoder>;
}

/**
 * Decode steps of one layer, prepared once: every step appends a token to each sequence and attends from it. Kernels find
 * all lengths in device memory, so the same launches (on CUDA one graph) serve while the cache grows, and the host waits
 * for nothing but the output. `KvCache.decoder` opens one.
 *
 * Steps take their turn among the calls on the cache. Between steps anything may happen to it: a prompt, `crop`, `fork`,
 * `reorder`, another decoder. The step after that reads the lengths once, to know how much room streams have.
 *
 * @example
 * const decoder = await cache.decoder({ splits: 4 });
 * const both = (bits: Uint16Array) => Uint16Array.of(...bits, ...bits);
 * const output = await decoder.step(both(newKeys), both(newValues), both(query));
 * output.length; // 2 * model.heads * model.headDim
 * // Once more on the same numbers, which are in decoder.buffers still; the output stays on the device.
 * await decoder.run();
 * decoder.buffers.output.bytes; // output.byteLength
 * await decoder.release();
 */
export class Decoder {
  readonly buffers: DecoderBuffers;
  readonly #host: DecoderHost;
  readonly #owned: readonly DeviceBuffer[];
  /** One, or more where attention is too much for one run of a device. */
  readonly #recordings: readonly Recording[];
  /** What a step writes, laid out as the input buffer is. */
  readonly #input: Uint16Array;
  /** Undefined where only the device knows them. */
  #lengths: readonly GrowingLengths[] | undefined;
  #lastTurn = 0;
  #ended: string | undefined;

  private constructor(
    host: DecoderHost,
    parts: { buffers: DecoderBuffers; owned: readonly DeviceBuffer[]; recordings: readonly Recording[] },
  ) {
    this.#host = host;
    this.buffers = parts.buffers;
    this.#owned = parts.owned;
    this.#recordings = parts.recordings;
    this.#input = new Uint16Array(parts.buffers.keys.buffer.bytes / 2);
    host.decoders.add(this);
  }

  /**
   * Allocates the buffers and records the launches, in a turn of the caller.
   *
   * @internal
   */
  static async open(host: DecoderHost, { splits }: DecoderOptions): Promise<Decoder> {
    const { device, geometry: g, capacity, layer, kernels, bindings, mostTokens } = host.memory;
    const { sequences } = capacity;
    const seen = Math.min(mostTokens, layer.slidingWindow ?? Number.POSITIVE_INFINITY);
    const plan = { sequences, queries: 1, splits: splits ?? chosenSplits(kernels, sequences, seen) };
    checkSplits(plan.splits);
    const owned: DeviceBuffer[] = [];
    const recordings: Recording[] = [];
    const tokenBytes = sequences * g.width * 2;
    const valueBytes = g.family === 'latent' ? 0 : tokenBytes;
    const stride = Math.ceil(tokenBytes / rangeAlignment) * rangeAlignment;
    const queryBytes = sequences * g.heads * g.headDim * 2;
    try {
      const buffer = device.allocate('inputs', 2 * stride + queryBytes);
      owned.push(buffer);
      const keys = { buffer, offset: 0, bytes: tokenBytes };
      const values = { buffer, offset: stride, bytes: valueBytes };
      const query = { buffer, offset: 2 * stride, bytes: queryBytes };
      const { runs, output } = attendLaunches(kernels, { ...bindings, query, seen }, plan, owned);
      const token = { new_keys: keys, ...(valueBytes > 0 ? { new_values: values } : {}) };
      const append = kernels.launch('append_token', { sequences }, { ...bindings, ...token });
      for (const [index, launches] of runs.entries()) {
        recordings.push(await device.record(index === 0 ? [append, ...launches] : launches));
      }
      return new Decoder(host, { buffers: { keys, values, query, output }, owned, recordings });
    } catch (fault) {
      for (const recording of recordings) recording.release();
      for (const buffer of owned) buffer.release();
      throw fault;
    }
  }

  /**
   * Appends a token to every sequence and attends from it. If the device fails half-way, the tokens may have been
   * appended to some sequences (`KvCache.lengths` tells), and the decoder ends: open another one.
   *
   * @param keys f16 bits [sequences][KV heads][head dim], after RoPE at each sequence's next position
   * @param values of the same shape; left out for latents, which need none
   * @param query f16 bits [sequences][heads][head dim], after RoPE
   * @returns float32 [sequences][heads][head dim]
   * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position; `does-not-fit` when
   * a sequence's stream has no room; then no sequence is changed
   */
  step(keys: Uint16Array, values: Uint16Array | undefined, query: Uint16Array): Promise<Float32Array> {
    return this.#turn(async (memory) => {
      const { device, geometry: g, capacity } = memory;
      const shape = (name: string, rows: { readonly name: string; readonly size: number }) => ({
        name: `${name}, layer ${capacity.layer}`,
        dimensions: [{ name: 'sequence', size: capacity.sequences }, rows, { name: 'channel', size: g.headDim }],
      });
      checkHalf(keys, shape('keys', { name: 'KV head', size: g.kvHeads }));
      checkValues(g, values, shape('values', { name: 'KV head', size: g.kvHeads }));
      checkHalf(query, shape('query', { name: 'head', size: g.heads }));
      await this.#grow(() => {
        const parts = [
          [this.buffers.keys, keys],
          [this.buffers.values, values],
          [this.buffers.query, query],
        ] as const;
        for (const [{ offset }, bits] of parts) if (bits) this.#input.set(bits, offset / 2);
        device.write(this.buffers.keys.buffer, this.#input);
      });
      const bytes = await device.read(this.buffers.output);
      return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    });
  }

  /**
   * The same step on what `buffers` holds when its turn comes, for callers whose numbers are on the device: nothing is
   * copied or checked for NaN, and the output stays in `buffers.output`.
   *
   * @throws KvforgeError `does-not-fit` when a sequence's stream has no room; then no sequence is changed
   */
  run(): Promise<void> {
    return this.#turn(() => this.#grow(() => {}));
  }

  /** Frees the decoder's buffers, in its turn. The cache stays; releasing the cache releases its decoders. */
  release(): Promise<void> {
    return this.#host.turns.take(async () => this.end('the decoder was released'));
  }

  /**
   * Frees the buffers, within a turn.
   *
   * @internal
   */
  end(reason: string): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    this.#host.decoders.delete(this);
    for (const recording of this.#recordings) recording.release();
    for (const buffer of this.#owned) buffer.release();
  }

  #turn<T>(work: (memory: CacheMemory) => Promise<T>): Promise<T> {
    const { turns, memory } = this.#host;
    return turns.take(async () => {
      // What another call did to the cache in between, only the device knows.
      if (turns.begun !== this.#lastTurn + 1) this.#lengths = undefined;
      this.#lastTurn = turns.begun;
      if (this.#ended === undefined) return work(memory);
      const [received, hint] = [`none, as ${this.#ended}`, 'Open another one.'];
      throw new KvforgeError('wrong-use', { at: 'decoder', expected: 'an open decoder', received, hint });
    });
  }

  /** Runs the recordings where every stream has room for a token more. */
  async #grow(fill: () => void): Promise<void> {
    const { memory } = this.#host;
    const { generated } = memory.capacity;
    this.#lengths ??= await memory.readRecords();
    const grown = grownWithin(memory.geometry, this.#lengths, { tokens: 1, generated });
    fill();
    try {
      for (const recording of this.#recordings) await recording.run();
    } catch (fault) {
      // Blocks that never finished may have left their counts behind, by which the next step would merge too early.
      this.end('a step failed on the device');
      throw fault;
    }
    this.#lengths = grown;
  }
}
