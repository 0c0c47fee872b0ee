import type { SequenceLayout } from '../codegen/plan/layout.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import type { LayerShape } from '../dsl/model.js';
import { type AppendOptions, append } from './cache/append.js';
import { type CacheCapacity, checkCapacity } from './cache/capacity.js';
import { checkOfScheme, checkSequences, checkWhole } from './cache/checkInput.js';
import type { Prompt } from './cache/checkPrompt.js';
import { type ClampedOutliers, clampedOutliers } from './cache/clampedOutliers.js';
import { contentsBytes, readContents } from './cache/contents.js';
import { Decoder, type DecoderOptions } from './cache/decoder.js';
import { checkFileBytes } from './cache/fileBytes.js';
import { packCache } from './cache/format.js';
import { cacheIdentity } from './cache/identity.js';
import { type KeptTokens, keep } from './cache/keep.js';
import { croppedLengths, emptyLengths, totalTokens } from './cache/lengths.js';
import { CacheMemory } from './cache/memory.js';
import { checkedFile, checkShare } from './cache/offered.js';
import { prefill } from './cache/prefill.js';
import { type AttendOptions, attend, type DecodedTokens, decompress } from './cache/read.js';
import { reorder } from './cache/reorder.js';
import { scopedOrEmpty } from './cache/scoped.js';
import { type TokenWeights, type TokenWeightsOptions, tokenWeights } from './cache/tokenWeights.js';
import { Turns } from './cache/turns.js';
import type { LoadedKernels } from './kernels.js';
import type { SequenceLengths } from './record.js';
import type { Rotation } from './reference/rope.js';

export type { AppendOptions } from './cache/append.js';
export type { CacheCapacity } from './cache/capacity.js';
export type { Prompt } from './cache/checkPrompt.js';
export type { ClampedOutliers } from './cache/clampedOutliers.js';
export type { Decoder, DecoderBuffers, DecoderOptions } from './cache/decoder.js';
export { evictionBlocks, evictionUnit, type TokenBlock } from './cache/evictable.js';
export type { KeptTokens } from './cache/keep.js';
export type { AttendOptions, DecodedTokens } from './cache/read.js';
export type { TokenWeights, TokenWeightsOptions } from './cache/tokenWeights.js';

/**
 * The compressed KV cache of one layer, on a device. Calls take effect one after the other, in the order in which they
 * are made, whether they are awaited or not; the arrays given to one must stay as they are until it is done. A call that
 * is refused changes nothing.
 *
 * @example
 * const cache = KvCache.open(kernels, { sequences: 1, tokens: 256, generated: 64 });
 * await cache.prefill(0, { keys, values, tokens: 256 });
 * await cache.append(newKeys, newValues);
 * const output = await cache.attend(query);
 * output.length; // model.heads * model.headDim
 * await cache.release();
 */
export class KvCache {
  readonly #memory: CacheMemory;
  readonly #turns = new Turns();
  readonly #decoders = new Set<Decoder>();
  #released: Promise<void> | undefined;

  private constructor(memory: CacheMemory) {
    this.#memory = memory;
  }

  /**
   * Allocates the cache: exactly `bytes` for the compressed parts, and the shared tables.
   *
   * @throws KvforgeError `wrong-use` when kernels are not loaded, a count is not a whole number in range, or past the
   * positions of the model; `does-not-fit` when a kernel of the device cannot bind as much
   */
  static open(kernels: LoadedKernels, capacity: CacheCapacity): KvCache {
    checkOfScheme(kernels);
    checkCapacity(kernels.geometry.model, capacity);
    return new KvCache(new CacheMemory(kernels, capacity));
  }

  get geometry(): Geometry {
    return this.#memory.geometry;
  }

  /** RoPE and sliding window of the layer that the cache is of. */
  get layer(): LayerShape {
    return this.#memory.layer;
  }

  /** How middle keys are turned to their positions: the layer's pairs, with its frequencies for the cache's capacity. */
  get rotation(): Rotation {
    return { invFreq: this.#memory.frequencies, pairing: this.layer.rope.pairing };
  }

  /** Bytes allocated for the compressed parts of all sequences, records included. */
  get bytes(): number {
    return this.#memory.bytes;
  }

  get layout(): SequenceLayout {
    return this.#memory.layout;
  }

  /**
   * Compresses a prompt into a sequence, replacing what it held. If the device fails half-way, the sequence is empty.
   *
   * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position; `wrong-use` when the
   * scheme weighs by the prompt's queries and there are none
   */
  prefill(sequence: number, prompt: Prompt): Promise<void> {
    return this.#turn((memory) => prefill(memory, sequence, prompt), sequence);
  }

  /**
   * Appends generated tokens to every sequence: one each, or several (`tokens`) in one call. The tokens that they push
   * out of the window are coded into the stream. If the device fails half-way, some of the tokens may have been appended.
   *
   * @param keys f16 bits [sequences][tokens][KV heads][head dim], after RoPE at each sequence's next positions
   * @throws KvforgeError `does-not-fit` when a sequence's stream has no room for all of them; then no sequence is changed
   */
  append(keys: Uint16Array, values?: Uint16Array, options?: AppendOptions): Promise<void> {
    return this.#turn((memory) => append(memory, { keys, values, tokens: options?.tokens ?? 1 }));
  }

  /**
   * Attention of query tokens of every sequence over what it holds. With several queries a sequence, append their keys
   * first: query i of n sees all but the last n - 1 - i tokens, and no more than the layer's sliding window.
   *
   * @param query f16 bits [sequences][queries][heads][head dim], after RoPE
   * @returns float32 [sequences][queries][heads][head dim]; zeros where there is nothing to see
   */
  attend(query: Uint16Array, options?: AttendOptions): Promise<Float32Array> {
    return this.#turn((memory) => attend(memory, query, options ?? {}));
  }

  /**
   * Prepares steps that append one token to every sequence and attend from it, without the host between them: buffers are
   * allocated and launches recorded once. It serves until it or the cache is released.
   *
   * @throws KvforgeError `wrong-use` for splits out of range; `does-not-fit` for more work than one launch takes
   * @example
   * const single = KvCache.open(kernels, { sequences: 1, tokens: 256, generated: 64 });
   * await single.prefill(0, { keys, values, tokens: 256 });
   * const decoder = await single.decoder();
   * const output = await decoder.step(newKeys, newValues, query);
   * output.length; // model.heads * model.headDim
   * await single.release();
   */
  decoder(options?: DecoderOptions): Promise<Decoder> {
    return this.#turn((memory) =>
      Decoder.open({ memory, turns: this.#turns, decoders: this.#decoders }, options ?? {}),
    );
  }

  /**
   * Decodes a sequence to f16, in token order.
   *
   * @example
   * const { tokens, keys } = await cache.decompress(0);
   * keys.length; // tokens * model.kvHeads * model.headDim
   */
  decompress(sequence: number): Promise<DecodedTokens> {
    return this.#turn((memory) => decompress(memory, sequence), sequence);
  }

  /**
   * What query tokens make of every token that a sequence holds: their softmax weights, with the model's scale and cap of
   * scores, causal, within the layer's sliding window. Policies choose by them what to keep. It decodes the sequence's keys
   * on the device, so it is for every so many tokens, not for each step.
   *
   * @param query f16 bits [queries][heads][head dim], after RoPE: of the last tokens that the sequence holds
   * @returns float32 [KV heads][tokens], in the order of `decompress`; each query token adds 1 for every query head
   * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position
   * @example
   * const { weights, tokens } = await cache.tokenWeights(0, query);
   * weights.length; // model.kvHeads * tokens
   */
  tokenWeights(sequence: number, query: Uint16Array, options?: TokenWeightsOptions): Promise<TokenWeights> {
    return this.#turn((memory) => tokenWeights(memory, sequence, query, options ?? {}), sequence);
  }

  /**
   * Evicts all tokens of the middle and of the stream but those that are named; sinks and window stay. Codes stay as they
   * are: rows move together, so that attention reads less and the stream has room again. The bytes of the cache stay
   * allocated; loaded into a smaller one, what `save` gives takes as many as it needs.
   *
   * Keys keep the positions that they came with, and so must those that follow: the next token's position is all that
   * the sequence has seen, `evictedTokens` of `lengths` and what it holds. If the device fails half-way, the sequence is
   * empty.
   *
   * @param tokens those to keep, ascending, counted as `decompress` orders them: the first of the middle follows the sinks.
   * Or a function that names them by the lengths, which are those of its turn
   * @throws KvforgeError `wrong-use` for what is no token of the middle or stream; for some tokens of a block that shares a
   * row of scales (`evictionUnit`); where keys are coded before RoPE, for tokens of the middle that would not be its first;
   * for a layer with a sliding window
   * @example
   * const generated = KvCache.open(kernels, { sequences: 1, tokens: 256, generated: 64 });
   * await generated.prefill(0, { keys, values, tokens: 256 });
   * await generated.append(newKeys, newValues);
   * // Of the stream's only token and of the middle nothing is kept.
   * await generated.keep(0, []);
   * (await generated.lengths(0)).evictedTokens; // 189
   * await generated.release();
   */
  keep(sequence: number, tokens: KeptTokens): Promise<void> {
    return this.#turn((memory) => keep(memory, sequence, tokens), sequence);
  }

  /**
   * Keeps the first tokens of a sequence, as when speculative tokens are rejected. Nothing is decoded: tokens of the
   * middle and of the stream stay coded, also where they are the last ones now, and the next tokens fill the window anew.
   *
   * Of a sequence that evicted tokens, `tokens` counts those that it holds, and `evictedTokens` stays, unless it is emptied.
   *
   * @param tokens how many to keep; 0 empties the sequence
   * @example
   * await cache.crop(0, 250);
   * (await cache.decompress(0)).tokens; // 250
   */
  crop(sequence: number, tokens: number): Promise<void> {
    return this.#turn(async (memory) => {
      const lengths = await memory.readRecord(sequence);
      const [most, bounds] = [totalTokens(lengths), `what sequence ${sequence} holds`];
      checkWhole(tokens, { at: 'tokens', least: 0, most, bounds, hint: 'Give the number of tokens to keep.' });
      memory.writeRecord(sequence, croppedLengths(lengths, tokens));
    }, sequence);
  }

  /**
   * Makes sequence `to` a copy of sequence `from`; what it held is gone.
   *
   * @example
   * await cache.fork(0, 1);
   * (await cache.lengths(1)).promptTokens; // 256
   */
  fork(from: number, to: number): Promise<void> {
    return this.#turn(
      (memory) =>
        reorder(
          memory,
          memory.shares.map((_, sequence) => (sequence === to ? from : sequence)),
        ),
      from,
      to,
    );
  }

  /**
   * Makes every sequence i a copy of what sequence `sources[i]` was, as beam search does. A permutation copies nothing;
   * of a source that is named n times, n - 1 copies are made. If the device fails half-way, the sequences that no source
   * names are empty, and the others as they were.
   *
   * @example
   * await cache.reorder([1, 0]);
   * (await cache.lengths(1)).promptTokens; // 256
   */
  reorder(sources: readonly number[]): Promise<void> {
    return this.#turn(async (memory) => {
      checkSequences(sources, memory.capacity.sequences);
      await reorder(memory, sources);
    });
  }

  /**
   * Lengths of a sequence, read from the device.
   *
   * @example
   * const { sinkTokens, middleTokens, windowTokens } = await cache.lengths(0);
   * [sinkTokens, middleTokens, windowTokens]; // [4, 188, 64]
   */
  lengths(sequence: number): Promise<SequenceLengths> {
    return this.#turn((memory) => memory.readRecord(sequence), sequence);
  }

  /**
   * Outliers of a sequence's prompt that found no place beside the codes, read from the device: their numbers are clamped
   * to the range of the code. Where there are many of them, the scheme wants a larger cap, or a range that leaves out less.
   * Of a sequence that was cropped, those of the prompt as it was given, while any of its coded tokens are left.
   *
   * @example
   * (await cache.clampedOutliers(0)).keys; // 0
   */
  clampedOutliers(sequence: number): Promise<ClampedOutliers> {
    return this.#turn((memory) => clampedOutliers(memory, sequence), sequence);
  }

  /**
   * Everything that the sequences hold, as the bytes of one safetensors file, with a version and a checksum. In Node,
   * `saveCache` writes it to the disk.
   *
   * @throws KvforgeError `does-not-fit` for 2 GiB or more
   * @example
   * const larger = KvCache.open(kernels, { sequences: 2, tokens: 512, generated: 64 });
   * await larger.load(await cache.save());
   * (await larger.lengths(0)).promptTokens; // 256
   */
  save(): Promise<Uint8Array> {
    return this.#turn(async (memory) => {
      const contents = [];
      const records = await memory.readRecords();
      checkFileBytes(contentsBytes(memory.layout, records));
      for (const [sequence, lengths] of records.entries()) {
        contents.push(readContents(memory.layout, await memory.readShare(sequence), lengths));
      }
      return packCache(cacheIdentity(memory), memory.layout, contents);
    });
  }

  /**
   * Replaces what all sequences hold by what `save` gave; sequences beyond those of the file are empty afterwards. The
   * file may be of a cache of another capacity, except that where RoPE depends on the length (longrope, dynamic NTK) both
   * have to have the same frequencies: those for `tokens` of the capacity. Names of schemes and models are not compared.
   *
   * @throws KvforgeError `invalid-input` for a file that is damaged, of another version, or of another scheme, model,
   * layer or frequencies; `does-not-fit` for more than the cache has room for, or 2 GiB
   */
  load(file: Uint8Array): Promise<void> {
    return this.#turn(async (memory) => {
      const contents = await checkedFile(file, memory);
      const sequences = [...memory.shares.keys()];
      await scopedOrEmpty(memory, sequences, async () => {
        for (const sequence of sequences) {
          const held = contents[sequence];
          for (const { name, offset } of memory.layout.parts) {
            const bytes = held?.parts.get(name);
            if (bytes) memory.writeShare(sequence, bytes, offset);
          }
          memory.writeRecord(sequence, held?.lengths ?? emptyLengths);
        }
      });
    });
  }

  /**
   * The sequence's share of the cache buffer, as it lies in device memory; `layout` says where its parts are.
   *
   * @example
   * const part = cache.layout.parts[0]!;
   * const share = await cache.readShare(0);
   * share.subarray(part.offset, part.offset + part.bytes).length; // part.bytes
   */
  readShare(sequence: number): Promise<Uint8Array> {
    return this.#turn((memory) => memory.readShare(sequence), sequence);
  }

  /**
   * Puts a share that `readShare` gave, of a cache with the same kernels' geometry and capacity, into a sequence.
   *
   * @throws KvforgeError `invalid-input` when its size is another layout's, a length is past the capacity, or a code names
   * what is not there
   * @example
   * await cache.writeShare(1, await cache.readShare(0), await cache.lengths(0));
   * (await cache.lengths(1)).promptTokens; // 256
   */
  writeShare(sequence: number, share: Uint8Array, lengths: SequenceLengths): Promise<void> {
    return this.#turn(async (memory) => {
      checkShare(share, lengths, memory);
      memory.writeShare(sequence, share);
      memory.writeRecord(sequence, lengths);
    }, sequence);
  }

  /**
   * Frees the device memory, in its turn: calls made before still take effect, and those made afterwards are refused.
   *
   * @example
   * const short = KvCache.open(kernels, { sequences: 1, tokens: 256, generated: 0 });
   * const filling = short.prefill(0, { keys, values, tokens: 256 });
   * await short.release();
   * await filling; // undefined
   */
  release(): Promise<void> {
    this.#released ??= this.#turns.take(async () => {
      for (const decoder of this.#decoders) decoder.end('the cache was released');
      this.#memory.release();
    });
    return this.#released;
  }

  /** Work that no other call on the cache comes in between of, once the sequences that it names are found to be some. */
  async #turn<T>(work: (memory: CacheMemory) => Promise<T>, ...sequences: readonly number[]): Promise<T> {
    if (this.#released) {
      const [received, hint] = ['none, as the cache was released', 'Open another one.'];
      throw new KvforgeError('wrong-use', { at: 'cache', expected: 'an open cache', received, hint });
    }
    return this.#turns.take(async () => {
      for (const sequence of sequences) this.#memory.checkSequence(sequence);
      return work(this.#memory);
    });
  }
}
