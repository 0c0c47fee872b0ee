import { layoutSequence, recordBytes, recordWords, type SequenceLayout } from '../../codegen/plan/layout.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import { frequenciesFor, type LayerShape, layerShape } from '../../dsl/model.js';
import { KeptFit } from '../calibrate/keptFit.js';
import type { BufferRange, Device, DeviceBuffer } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { readRecord, type SequenceLengths, writeRecord } from '../record.js';
import { buildTables } from '../tables.js';
import type { CacheCapacity } from './capacity.js';
import { checkWhole } from './checkInput.js';
import { emptyLengths } from './lengths.js';

/**
 * The buffers of a cache: a share for every sequence, a record that says which share is whose, and the tables. Which
 * share a sequence has is free, so that beams are put in order by rewriting records.
 */
export class CacheMemory {
  readonly kernels: LoadedKernels;
  readonly capacity: Required<CacheCapacity>;
  readonly layer: LayerShape;
  /** Radians a position of the layer's pairs. */
  readonly frequencies: readonly number[];
  readonly layout: SequenceLayout;
  readonly keptFit = new KeptFit();
  readonly #cache: DeviceBuffer;
  readonly #sequences: DeviceBuffer;
  readonly #tables: DeviceBuffer;
  #shares: readonly number[];

  constructor(kernels: LoadedKernels, capacity: CacheCapacity) {
    const { device, geometry } = kernels;
    const { sequences, tokens, generated, layer = 0 } = capacity;
    this.kernels = kernels;
    this.capacity = { sequences, tokens, generated, layer };
    this.layer = layerShape(geometry.model, layer);
    // Where frequencies depend on the length (dynamic NTK, longrope), they are those of a prompt that fills the capacity.
    this.frequencies = frequenciesFor(this.layer.rope, tokens);
    this.layout = layoutSequence(geometry, { tokens, generated });
    const shares = `${sequences} sequences of ${this.layout.bytes}`;
    checkBinding(device, 'cache', this.layout.bytes * sequences, shares);
    // Angles are looked up for tokens of the middle alone, which are tokens of the prompt.
    const tables = buildTables(geometry, tokens, this.frequencies);
    checkBinding(device, 'tables', tables.byteLength, `angles of ${tokens} tokens`);
    this.#shares = Array.from({ length: sequences }, (_, sequence) => sequence);
    const owned: DeviceBuffer[] = [];
    const allocate = (label: string, bytes: number): DeviceBuffer => {
      const buffer = device.allocate(label, bytes);
      owned.push(buffer);
      return buffer;
    };
    try {
      this.#cache = allocate('cache', this.layout.bytes * sequences);
      this.#sequences = allocate('sequences', recordBytes * sequences);
      this.#tables = allocate('tables', tables.byteLength);
      device.write(this.#tables, tables);
      for (const sequence of this.#shares) this.writeRecord(sequence, emptyLengths);
    } catch (fault) {
      for (const buffer of owned) buffer.release();
      throw fault;
    }
  }

  get device(): Device {
    return this.kernels.device;
  }

  get geometry(): Geometry {
    return this.kernels.geometry;
  }

  /** Tokens that a sequence has room for. */
  get mostTokens(): number {
    return this.capacity.tokens + this.capacity.generated + this.geometry.scheme.window;
  }

  /** Bytes of shares and records. */
  get bytes(): number {
    return this.#cache.bytes + this.#sequences.bytes;
  }

  /** For each sequence, the number of its share. */
  get shares(): readonly number[] {
    return this.#shares;
  }

  /** What every kernel over all sequences binds. */
  get bindings(): { readonly sequences: BufferRange; readonly cache: BufferRange; readonly tables: BufferRange } {
    return {
      sequences: { buffer: this.#sequences },
      cache: { buffer: this.#cache },
      tables: { buffer: this.#tables },
    };
  }

  /** What a kernel over one sequence binds. */
  bindingsOf(sequence: number): {
    readonly sequence: BufferRange;
    readonly cache: BufferRange;
    readonly tables: BufferRange;
  } {
    const record = { buffer: this.#sequences, offset: sequence * recordBytes, bytes: recordBytes };
    return { sequence: record, cache: { buffer: this.#cache }, tables: { buffer: this.#tables } };
  }

  /** @throws KvforgeError `wrong-use` for what is no sequence of the cache */
  checkSequence(sequence: number): void {
    const most = this.capacity.sequences - 1;
    checkWhole(sequence, { at: 'sequence', least: 0, most, hint: 'Open the cache with more sequences.' });
  }

  async readRecord(sequence: number): Promise<SequenceLengths> {
    const bytes = await this.device.read(this.#sequences, sequence * recordBytes, recordBytes);
    return readRecord(new Uint32Array(bytes.buffer, bytes.byteOffset, recordWords));
  }

  async readRecords(): Promise<readonly SequenceLengths[]> {
    const bytes = await this.device.read(this.#sequences);
    return this.#shares.map((_, sequence) =>
      readRecord(new Uint32Array(bytes.buffer, bytes.byteOffset + sequence * recordBytes, recordWords)),
    );
  }

  /** @param share the sequence's from now on; the one it has if left out */
  writeRecord(
    sequence: number,
    lengths: SequenceLengths,
    {
      share = this.#shares[sequence]!,
      queryTokens = 0,
    }: { readonly share?: number; readonly queryTokens?: number } = {},
  ): void {
    const { slidingWindow = 0 } = this.layer;
    const record = writeRecord(this.layout, this.shareOffset(share), lengths, { slidingWindow, queryTokens });
    this.device.write(this.#sequences, record, sequence * recordBytes);
    // A copy of the list for every sequence would add up where there are many.
    if (share !== this.#shares[sequence]) this.#shares = this.#shares.with(sequence, share);
  }

  /** Bytes of the cache buffer before a share. */
  shareOffset(share: number): number {
    return share * this.layout.bytes;
  }

  /** The sequence's share, or the bytes of a part of it. */
  readShare(
    sequence: number,
    { offset, bytes }: { readonly offset: number; readonly bytes: number } = { offset: 0, bytes: this.layout.bytes },
  ): Promise<Uint8Array> {
    return this.device.read(this.#cache, this.shareOffset(this.#shares[sequence]!) + offset, bytes);
  }

  /** @param offset bytes from the start of the sequence's share */
  writeShare(sequence: number, bytes: Uint8Array, offset = 0): void {
    this.device.write(this.#cache, bytes, this.shareOffset(this.#shares[sequence]!) + offset);
  }

  release(): void {
    this.keptFit.release();
    for (const buffer of [this.#cache, this.#sequences, this.#tables]) buffer.release();
  }
}

/** Kernels bind these buffers whole, so that a larger one could be filled but never read. */
function checkBinding({ limits }: Device, at: string, bytes: number, made: string): void {
  if (bytes <= limits.bytesPerBinding) return;
  throw new KvforgeError('does-not-fit', {
    at,
    expected: `at most ${limits.bytesPerBinding} bytes (the largest binding of this device)`,
    received: `${bytes} (${made})`,
    hint: 'Open the cache with fewer sequences or tokens.',
  });
}
