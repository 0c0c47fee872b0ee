import { layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import type { Geometry } from '../../dsl/geometry.js';
import { attendLaunches } from '../attendLaunches.js';
import { promptLengths } from '../cache/lengths.js';
import { CacheMemory } from '../cache/memory.js';
import { scoped } from '../cache/scoped.js';
import type { BufferRange, DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import type { SequenceLengths } from '../record.js';
import type { Cache, CodedSequence } from '../reference/index.js';
import { unpackShare } from '../reference/unpackShare.js';
import type { ShapeClass } from '../tune/shapeClass.js';
import { splitChoices } from '../tune/splitChoices.js';
import { syntheticShare } from '../tune/syntheticCache.js';
import { seenOf, usedBytes, visibleLengths } from '../tune/visible.js';
import { codeValues } from '../verify/codeValues.js';
import { endsOf, runPoisoned, sampledRows, worstOfHead } from './checkOutputs.js';
import { type Checked, type Contender, copiesFor, WriteQueue } from './contender.js';
import { decodeHead } from './decodeHead.js';
import { normalHalves } from './inputs.js';
import { attendOperations, rebuildOperations } from './operations.js';

export interface CompressedInput {
  readonly shape: ShapeClass;
  readonly seed: number;
  /** What the largest error must not exceed. */
  readonly bar: number;
  /** One head of a sequence, decoded in float64, by tokens: it takes long, and sequences of a length hold the same. */
  readonly decoded: Map<number, Cache>;
  /** What the kernels were generated with. */
  readonly tunables: Contender['tunables'];
}

/** A scheme's attention over sequences that hold the same synthetic codes: the batch of one copy after the other. */
export class CompressedAttention implements Contender {
  readonly name: string;
  readonly tunables: Contender['tunables'];
  readonly bytes: number;
  readonly bytesRead: number;
  readonly operations: number;
  readonly cold: boolean;
  readonly splits: readonly number[];
  readonly #kernels: LoadedKernels;
  readonly #input: CompressedInput;
  readonly #memory: CacheMemory;
  /** A copy each: one that all share would stay in the caches. */
  readonly #tables: readonly BufferRange[];
  readonly #owned: readonly DeviceBuffer[];
  readonly #lengths: SequenceLengths;
  readonly #share: Uint8Array;
  readonly #query: Uint16Array;
  /** Tokens of a sequence that its query sees. */
  readonly #seen: number;

  private constructor(kernels: LoadedKernels, input: CompressedInput, prepared: Prepared) {
    const { geometry: g, device } = kernels;
    const { sequences, tokens } = input.shape;
    const { memory, owned, share, cold } = prepared;
    this.#seen = seenOf(g.model, input.shape).tokens;
    this.cold = cold;
    this.#kernels = kernels;
    this.tunables = input.tunables;
    this.#input = input;
    this.#memory = memory;
    this.#tables = [memory.bindings.tables, ...owned.map((buffer) => ({ buffer }))];
    this.#owned = owned;
    this.#share = share;
    this.#lengths = promptLengths(g, tokens);
    this.#query = normalHalves({ heads: sequences * g.heads, tokens: 1, headDim: g.headDim }, input.seed);
    this.name = g.scheme.name;
    this.bytes = sequences * (memory.layout.bytes + recordBytes);
    const visible = visibleLengths(this.#lengths, this.#seen);
    this.bytesRead = sequences * usedBytes(memory.layout, visible);
    this.operations =
      attendOperations(g, sequences * this.#seen) + rebuildOperations(g, sequences * visible.middleTokens);
    this.splits = splitChoices(g, { sequences, tokens: this.#seen }, device.identity.multiprocessors);
  }

  static async open(kernels: LoadedKernels, input: CompressedInput): Promise<CompressedAttention> {
    const { geometry: g, device } = kernels;
    const { sequences, tokens } = input.shape;
    const layout = layoutSequence(g, { tokens, generated: 0 });
    const lengths = promptLengths(g, tokens);
    const read = sequences * usedBytes(layout, visibleLengths(lengths, seenOf(g.model, input.shape).tokens));
    const { copies, cold } = copiesFor({ read, held: sequences * layout.bytes }, device.identity.cacheBytes);
    const memory = new CacheMemory(kernels, { sequences: sequences * copies, tokens, generated: 0 });
    const owned: DeviceBuffer[] = [];
    try {
      const { buffer } = memory.bindings.tables;
      const tables = await device.read(buffer);
      while (owned.length < copies - 1) {
        const copy = device.allocate('tables', buffer.bytes);
        owned.push(copy);
        device.write(copy, tables);
      }
      const share = syntheticShare(g, layout, lengths, input.seed);
      const queue = new WriteQueue(() => memory.readRecord(0));
      for (let sequence = 0; sequence < sequences * copies; sequence++) {
        memory.writeShare(sequence, share);
        memory.writeRecord(sequence, lengths);
        await queue.wrote(share.byteLength);
      }
      return new CompressedAttention(kernels, input, { memory, owned, share, cold });
    } catch (fault) {
      for (const buffer of owned) buffer.release();
      memory.release();
      throw fault;
    }
  }

  get copies(): number {
    return this.#tables.length;
  }

  lists(splits: number, owned: DeviceBuffer[]): readonly (readonly Launch[])[] {
    return this.#tables.map((_, copy) => this.#run(copy, splits, owned).launches);
  }

  async check(splits: number): Promise<Checked> {
    const { device, geometry: g } = this.#kernels;
    const { bar, seed, shape, decoded } = this.#input;
    const output = await scoped(async (owned) => {
      const run = this.#run(0, splits, owned);
      return runPoisoned(device, run.launches, run.output);
    });
    const kvHead = seed % g.kvHeads;
    const sequences = endsOf(shape.sequences);
    const held = decoded.get(shape.tokens) ?? decodeHead(this.#parts(g), kvHead);
    decoded.set(shape.tokens, held);
    const { slidingWindow = 0 } = this.#memory.layer;
    const maxError = worstOfHead(g, { output, query: this.#query, kvHead, held, sequences, slidingWindow });
    return { maxError, bar, what: sampledRows(g, kvHead, sequences) };
  }

  release(): void {
    for (const buffer of this.#owned) buffer.release();
    this.#memory.release();
  }

  /** The launches over one copy: their records alone are bound, and say where its shares are. */
  #run(
    copy: number,
    splits: number,
    owned: DeviceBuffer[],
  ): { readonly launches: readonly Launch[]; readonly output: DeviceBuffer } {
    const { sequences } = this.#input.shape;
    const { sequences: records, cache } = this.#memory.bindings;
    const bytes = sequences * recordBytes;
    const own = { buffer: records.buffer, offset: copy * bytes, bytes };
    const bound = { sequences: own, cache, tables: this.#tables[copy]! };
    const plan = { sequences, queries: 1, splits };
    const { runs, output } = attendLaunches(
      this.#kernels,
      { ...bound, query: this.#query, seen: this.#seen },
      plan,
      owned,
    );
    return { launches: runs.flat(), output };
  }

  #parts(g: Geometry): CodedSequence {
    const { layout, frequencies, layer } = this.#memory;
    const parts = unpackShare(g, layout, this.#share, this.#lengths, codeValues(g));
    return { ...parts, rope: { invFreq: frequencies, pairing: layer.rope.pairing } };
  }
}

interface Prepared {
  readonly memory: CacheMemory;
  /** Tables of all copies but the first. */
  readonly owned: readonly DeviceBuffer[];
  readonly share: Uint8Array;
  readonly cold: boolean;
}
