import { layoutSequence, recordBytes, type SequenceLayout, splitPrompt } from '../codegen/plan/layout.js';
import { KvforgeError } from '../dsl/errors.js';
import type { Geometry } from '../dsl/geometry.js';
import { partialWords } from '../dsl/stages/attend.js';
import type { DeviceBuffer } from './device.js';
import { encodeLaunches } from './encode.js';
import { checkHalf } from './halfBits.js';
import type { LoadedKernels } from './kernels.js';
import { readRecord, type SequenceLengths, writeRecord } from './record.js';
import { buildTables } from './tables.js';
import { planWork } from './work.js';

export interface CacheCapacity {
  /** Sequences held side by side. */
  readonly sequences: number;
  /** Prompt tokens of a sequence, at most. */
  readonly tokens: number;
  /** Tokens generated after the prompt that may enter the stream, at most. */
  readonly generated: number;
}

const emptyLengths: SequenceLengths = {
  sinkTokens: 0,
  middleTokens: 0,
  streamTokens: 0,
  windowTokens: 0,
  windowStart: 0,
  promptTokens: 0,
};

/**
 * The compressed KV cache of one layer, on a device.
 *
 * @example
 * const cache = KvCache.open(kernels, { sequences: 1, tokens: 2048, generated: 64 });
 * await cache.prefill(0, keys, values, 2048);
 * const output = await cache.attend(query);
 */
export class KvCache {
  readonly #kernels: LoadedKernels;
  readonly #capacity: CacheCapacity;
  readonly #layout: SequenceLayout;
  readonly #buffers: { readonly cache: DeviceBuffer; readonly sequences: DeviceBuffer; readonly tables: DeviceBuffer };

  #lastAppend: Promise<void> = Promise.resolve();

  private constructor(kernels: LoadedKernels, capacity: CacheCapacity, layout: SequenceLayout) {
    const { device, geometry } = kernels;
    this.#kernels = kernels;
    this.#capacity = capacity;
    this.#layout = layout;
    const positions = capacity.tokens + capacity.generated + geometry.scheme.window;
    const tables = buildTables(geometry, positions);
    this.#buffers = {
      cache: device.allocate('cache', layout.bytes * capacity.sequences),
      sequences: device.allocate('sequences', recordBytes * capacity.sequences),
      tables: device.allocate('tables', tables.byteLength),
    };
    device.write(this.#buffers.tables, tables);
    for (let sequence = 0; sequence < capacity.sequences; sequence++) this.#writeRecord(sequence, emptyLengths);
  }

  /**
   * Allocates the cache: exactly `bytes` for the compressed parts, and the shared tables.
   *
   * @throws KvforgeError `wrong-use` when a count is not a whole number in range
   */
  static open(kernels: LoadedKernels, capacity: CacheCapacity): KvCache {
    if (!Number.isInteger(capacity.sequences) || capacity.sequences < 1 || capacity.sequences > 65535) {
      throw new KvforgeError('wrong-use', {
        at: 'sequences',
        expected: 'a whole number from 1 to 65535',
        received: String(capacity.sequences),
        hint: 'Open one cache for the whole batch.',
      });
    }
    const { maxPositions, name } = kernels.geometry.model;
    if (capacity.tokens + capacity.generated > maxPositions) {
      throw new KvforgeError('wrong-use', {
        at: 'tokens',
        expected: `at most ${maxPositions} tokens, prompt and generated (the positions of ${name})`,
        received: String(capacity.tokens + capacity.generated),
        hint: 'Lower the capacity, or give the model its longer context in config.json.',
      });
    }
    const layout = layoutSequence(kernels.geometry, { tokens: capacity.tokens, generated: capacity.generated });
    return new KvCache(kernels, capacity, layout);
  }

  get geometry(): Geometry {
    return this.#kernels.geometry;
  }

  /** Bytes allocated for the compressed parts of all sequences, records included. */
  get bytes(): number {
    return this.#buffers.cache.bytes + this.#buffers.sequences.bytes;
  }

  get layout(): SequenceLayout {
    return this.#layout;
  }

  /**
   * Compresses a prompt into a sequence, replacing what it held.
   *
   * @param keys f16 bits [KV heads][tokens][head dim], after RoPE at positions 0 to tokens - 1
   * @param values f16 bits [KV heads][tokens][head dim]
   * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position
   */
  async prefill(sequence: number, keys: Uint16Array, values: Uint16Array, tokens: number): Promise<void> {
    const { device, geometry: g } = this.#kernels;
    this.#checkSequence(sequence);
    if (!Number.isInteger(tokens) || tokens < 1 || tokens > this.#capacity.tokens) {
      throw new KvforgeError('wrong-use', {
        at: 'tokens',
        expected: `a whole number from 1 to ${this.#capacity.tokens} (the capacity)`,
        received: String(tokens),
        hint: 'Open the cache with more tokens.',
      });
    }
    const dimensions = [
      { name: 'KV head', size: g.kvHeads },
      { name: 'token', size: tokens },
      { name: 'channel', size: g.headDim },
    ];
    checkHalf(keys, { name: 'keys', dimensions });
    checkHalf(values, { name: 'values', dimensions });

    const { sinks, middle, window } = splitPrompt(g, tokens);
    const owned: DeviceBuffer[] = [];
    const prompt = (label: string, data: Uint16Array) => {
      const buffer = device.allocate(label, data.byteLength);
      owned.push(buffer);
      device.write(buffer, data);
      return { buffer };
    };
    let done = false;
    try {
      this.#writeRecord(sequence, {
        sinkTokens: sinks,
        middleTokens: middle,
        streamTokens: 0,
        windowTokens: window,
        windowStart: 0,
        promptTokens: tokens,
      });
      const launches = encodeLaunches(
        this.#kernels,
        {
          sequence: { buffer: this.#buffers.sequences, offset: sequence * recordBytes, bytes: recordBytes },
          keys: prompt('keys', keys),
          values: prompt('values', values),
          tables: { buffer: this.#buffers.tables },
          cache: { buffer: this.#buffers.cache },
        },
        middle,
        owned,
      );
      await device.run(launches);
      done = true;
    } finally {
      // A sequence whose prompt failed half-way holds nothing, rather than lengths of tokens that were never coded.
      if (!done) this.#emptyAfterFault(sequence);
      for (const buffer of owned) buffer.release();
    }
  }

  /**
   * Appends one generated token to every sequence.
   *
   * @param keys f16 bits [sequences][KV heads][head dim], after RoPE at each sequence's next position
   * @throws KvforgeError `does-not-fit` when a sequence's stream is full; then no sequence is changed
   */
  append(keys: Uint16Array, values: Uint16Array): Promise<void> {
    // One after the other: between the check for room and the launch no other token may come in.
    const turn = this.#lastAppend.then(() => this.#appendNow(keys, values));
    this.#lastAppend = turn.catch(() => {});
    return turn;
  }

  async #appendNow(keys: Uint16Array, values: Uint16Array): Promise<void> {
    const { device, geometry: g } = this.#kernels;
    const { sequences } = this.#capacity;
    const dimensions = [
      { name: 'sequence', size: sequences },
      { name: 'KV head', size: g.kvHeads },
      { name: 'channel', size: g.headDim },
    ];
    checkHalf(keys, { name: 'keys', dimensions });
    checkHalf(values, { name: 'values', dimensions });
    const full = (await this.#readRecords()).findIndex(
      ({ streamTokens, windowTokens }) => windowTokens === g.scheme.window && streamTokens >= this.#capacity.generated,
    );
    if (full >= 0) {
      throw new KvforgeError('does-not-fit', {
        at: `sequence ${full}`,
        expected: `at most ${this.#capacity.generated} tokens in the stream`,
        received: `${this.#capacity.generated + 1}`,
        hint: 'Open the cache with more generated tokens; nothing was appended to any sequence.',
      });
    }
    const newKeys = device.allocate('new_keys', keys.byteLength);
    const newValues = device.allocate('new_values', values.byteLength);
    try {
      device.write(newKeys, keys);
      device.write(newValues, values);
      await device.run([
        this.#kernels.launch(
          'append_token',
          { sequences },
          {
            sequences: { buffer: this.#buffers.sequences },
            new_keys: { buffer: newKeys },
            new_values: { buffer: newValues },
            tables: { buffer: this.#buffers.tables },
            cache: { buffer: this.#buffers.cache },
          },
        ),
      ]);
    } finally {
      newKeys.release();
      newValues.release();
    }
  }

  /**
   * Attention of one query token a sequence over everything the sequence holds.
   *
   * @param query f16 bits [sequences][heads][head dim], after RoPE
   * @param splits blocks that share one row of tokens; chosen from the lengths when left out
   * @returns float32 [sequences][heads][head dim]; zeros for an empty sequence
   */
  async attend(query: Uint16Array, splits?: number): Promise<Float32Array> {
    const { device, geometry: g } = this.#kernels;
    const { sequences } = this.#capacity;
    checkHalf(query, {
      name: 'query',
      dimensions: [
        { name: 'sequence', size: sequences },
        { name: 'head', size: g.heads },
        { name: 'channel', size: g.headDim },
      ],
    });
    const work = planWork(g, sequences, splits ?? (await this.#defaultSplits()));
    const workItems = work.length / 4;
    const buffers = {
      work: device.allocate('work', work.byteLength),
      query: device.allocate('query', query.byteLength),
      partials: device.allocate('partials', workItems * partialWords(g) * 4),
      output: device.allocate('output', sequences * g.heads * g.headDim * 4),
      counters: device.allocate('counters', sequences * g.kvHeads * 4),
    };
    try {
      device.write(buffers.work, work);
      device.write(buffers.query, query);
      device.write(buffers.counters, new Uint32Array(sequences * g.kvHeads));
      const shared = {
        sequences: { buffer: this.#buffers.sequences },
        work: { buffer: buffers.work },
        cache: { buffer: this.#buffers.cache },
        query: { buffer: buffers.query },
        tables: { buffer: this.#buffers.tables },
        partials: { buffer: buffers.partials },
      };
      const output = { buffer: buffers.output };
      const launches =
        device.target === 'cuda'
          ? [
              this.#kernels.launch(
                'attend',
                { workItems },
                { ...shared, output, counters: { buffer: buffers.counters } },
              ),
            ]
          : [
              this.#kernels.launch('attend', { workItems }, shared),
              this.#kernels.launch(
                'attend_merge',
                { workItems },
                { work: shared.work, partials: shared.partials, output },
              ),
            ];
      await device.run(launches);
      const bytes = await device.read(buffers.output);
      return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    } finally {
      for (const buffer of Object.values(buffers)) buffer.release();
    }
  }

  /**
   * Decodes a sequence to f16, in token order.
   *
   * @returns f16 bits [KV heads][tokens][head dim], keys after RoPE
   */
  async decompress(sequence: number): Promise<{ keys: Uint16Array; values: Uint16Array; tokens: number }> {
    const { device, geometry: g } = this.#kernels;
    this.#checkSequence(sequence);
    const lengths = await this.lengths(sequence);
    const tokens = lengths.sinkTokens + lengths.middleTokens + lengths.streamTokens + lengths.windowTokens;
    const bytes = Math.max(1, tokens) * g.width * 2;
    const keys = device.allocate('keys', bytes);
    const values = device.allocate('values', bytes);
    try {
      await device.run([
        this.#kernels.launch(
          'decompress',
          { tokens },
          {
            sequence: { buffer: this.#buffers.sequences, offset: sequence * recordBytes, bytes: recordBytes },
            cache: { buffer: this.#buffers.cache },
            tables: { buffer: this.#buffers.tables },
            keys: { buffer: keys },
            values: { buffer: values },
          },
        ),
      ]);
      const halves = async (buffer: DeviceBuffer) => {
        if (tokens === 0) return new Uint16Array(0);
        const read = await device.read(buffer);
        return new Uint16Array(read.buffer, read.byteOffset, read.byteLength / 2);
      };
      return { keys: await halves(keys), values: await halves(values), tokens };
    } finally {
      keys.release();
      values.release();
    }
  }

  /** Lengths of a sequence, read from the device. */
  async lengths(sequence: number): Promise<SequenceLengths> {
    this.#checkSequence(sequence);
    return (await this.#readRecords())[sequence]!;
  }

  /** The sequence's share of the cache buffer, as it lies in device memory; `layout` says where its parts are. */
  async readShare(sequence: number): Promise<Uint8Array> {
    this.#checkSequence(sequence);
    const { bytes } = this.#layout;
    return this.#kernels.device.read(this.#buffers.cache, sequence * bytes, bytes);
  }

  /**
   * Puts a share that `readShare` gave, of a cache with the same kernels' geometry and capacity, into a sequence.
   *
   * @throws KvforgeError `invalid-input` when its size is another layout's, or a length is past the capacity
   */
  writeShare(sequence: number, share: Uint8Array, lengths: SequenceLengths): void {
    this.#checkSequence(sequence);
    if (share.byteLength !== this.#layout.bytes) {
      throw new KvforgeError('invalid-input', {
        at: 'share',
        expected: `${this.#layout.bytes} bytes (this cache's layout)`,
        received: String(share.byteLength),
        hint: 'Open both caches with the same scheme, model and capacity.',
      });
    }
    const { capacity } = this.#layout;
    const most = {
      sinkTokens: capacity.sinks,
      middleTokens: capacity.middle,
      streamTokens: capacity.stream,
      windowTokens: capacity.window,
      windowStart: capacity.window - 1,
      promptTokens: this.#capacity.tokens,
    };
    for (const [name, limit] of Object.entries(most)) {
      const value: unknown = lengths?.[name as keyof SequenceLengths];
      // A kernel believes the record: a length past a part would be read past the part.
      if (!Number.isInteger(value) || (value as number) < 0 || (value as number) > limit) {
        throw new KvforgeError('invalid-input', {
          at: `lengths.${name}`,
          expected: `a whole number from 0 to ${limit}`,
          received: String(value),
          hint: 'Pass the lengths that the other cache gave.',
        });
      }
    }
    this.#kernels.device.write(this.#buffers.cache, share, sequence * this.#layout.bytes);
    this.#writeRecord(sequence, lengths);
  }

  /** Frees the device memory; the cache cannot be used afterwards. */
  release(): void {
    for (const buffer of Object.values(this.#buffers)) buffer.release();
  }

  async #defaultSplits(): Promise<number> {
    const totals = (await this.#readRecords()).map(
      ({ sinkTokens, middleTokens, streamTokens, windowTokens }) =>
        sinkTokens + middleTokens + streamTokens + windowTokens,
    );
    // 256 tokens keep a block's fixed cost, loading the basis, below the cost of its tokens.
    return Math.min(64, Math.max(1, Math.ceil(Math.max(...totals) / 256)));
  }

  #emptyAfterFault(sequence: number): void {
    try {
      this.#writeRecord(sequence, emptyLengths);
    } catch {
      // The device is gone, and the cache with it; the fault itself is what the caller must see.
    }
  }

  #writeRecord(sequence: number, lengths: SequenceLengths): void {
    const record = writeRecord(this.#layout, sequence * this.#layout.bytes, lengths);
    this.#kernels.device.write(this.#buffers.sequences, record, sequence * recordBytes);
  }

  async #readRecords(): Promise<readonly SequenceLengths[]> {
    const bytes = await this.#kernels.device.read(this.#buffers.sequences);
    return Array.from({ length: this.#capacity.sequences }, (_, sequence) =>
      readRecord(new Uint32Array(bytes.buffer, bytes.byteOffset + sequence * recordBytes, recordBytes / 4)),
    );
  }

  #checkSequence(sequence: number): void {
    if (!Number.isInteger(sequence) || sequence < 0 || sequence >= this.#capacity.sequences) {
      throw new KvforgeError('wrong-use', {
        at: 'sequence',
        expected: `a whole number from 0 to ${this.#capacity.sequences - 1}`,
        received: String(sequence),
        hint: 'Open the cache with more sequences.',
      });
    }
  }
}
