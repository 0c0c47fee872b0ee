import { attendLaunches, defaultSplits } from '../attendLaunches.js';
import { promptLengths } from '../cache/lengths.js';
import { CacheMemory } from '../cache/memory.js';
import type { DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import { type Bench, copiesFor, type Prepared, releaseAll } from './bench.js';
import type { Variant } from './protocol.js';
import type { ShapeClass } from './shapeClass.js';
import { syntheticShare } from './syntheticCache.js';
import { seenOf, usedBytes, visibleLengths } from './visible.js';

/** Caches full of random codes, for what reads them. */
interface FilledCaches {
  readonly memories: readonly CacheMemory[];
  /** Bytes of one cache that a run reads. */
  readonly bytes: number;
  readonly cold: boolean;
}

/** @param seen tokens of every sequence that a run reads: the others do not push anything out of a cache */
function fill(kernels: LoadedKernels, { sequences, tokens }: ShapeClass, seen: number): FilledCaches {
  const { device, geometry: g } = kernels;
  const memories: CacheMemory[] = [];
  try {
    const open = () => {
      const memory = new CacheMemory(kernels, { sequences, tokens, generated: 0 });
      memories.push(memory);
      return memory;
    };
    const { layout } = open();
    const lengths = promptLengths(g, tokens);
    const bytes = sequences * usedBytes(layout, visibleLengths(lengths, seen));
    const { copies, cold } = copiesFor(bytes, device.identity.cacheBytes);
    while (memories.length < copies) open();
    const share = syntheticShare(g, layout, lengths, 1);
    for (const memory of memories) {
      for (let sequence = 0; sequence < sequences; sequence++) {
        memory.writeShare(sequence, share);
        memory.writeRecord(sequence, lengths);
      }
    }
    return { memories, bytes, cold };
  } catch (error) {
    for (const memory of memories) memory.release();
    throw error;
  }
}

/** f16 bits of numbers of either sign between 1/2 and 1: queries whose scores differ. */
export function queryBits(count: number): Uint16Array {
  return Uint16Array.from({ length: count }, (_, i) => {
    const mixed = Math.imul(i + 1, 0x9e3779b1) >>> 0;
    return 0x3800 | (mixed >>> 22) | ((mixed & 1) << 15);
  });
}

/** Attention of one query token of every sequence over full caches. */
export class AttendBench implements Bench {
  readonly #seen: ShapeClass;
  readonly #caches: FilledCaches;

  constructor(kernels: LoadedKernels, shape: ShapeClass) {
    this.#seen = seenOf(kernels.geometry.model, shape);
    this.#caches = fill(kernels, shape, this.#seen.tokens);
  }

  async prepare(kernels: LoadedKernels, { splits }: Variant): Promise<Prepared> {
    const g = kernels.geometry;
    const { sequences, tokens } = this.#seen;
    const { memories, bytes, cold } = this.#caches;
    const query = queryBits(sequences * g.heads * g.headDim);
    const plan = { sequences, queries: 1, splits: splits ?? defaultSplits(g, sequences, tokens) };
    const owned: DeviceBuffer[] = [];
    const release = () => releaseAll(owned);
    try {
      const lists = memories.map(({ bindings }): Launch[] =>
        attendLaunches(kernels, { ...bindings, query, seen: tokens }, plan, owned).runs.flat(),
      );
      return { lists, bytes, cold, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  release(): void {
    for (const memory of this.#caches.memories) memory.release();
  }
}

/** Decoding of one sequence to f16. */
export class DecompressBench implements Bench {
  readonly #tokens: number;
  readonly #caches: FilledCaches;

  constructor(kernels: LoadedKernels, { tokens }: ShapeClass) {
    this.#tokens = tokens;
    this.#caches = fill(kernels, { sequences: 1, tokens }, tokens);
  }

  async prepare(kernels: LoadedKernels): Promise<Prepared> {
    const { device, geometry: g } = kernels;
    const { memories, bytes, cold } = this.#caches;
    const owned: DeviceBuffer[] = [];
    const release = () => releaseAll(owned);
    try {
      const allocate = (label: string) => {
        const buffer = device.allocate(label, this.#tokens * g.width * 2);
        owned.push(buffer);
        return { buffer };
      };
      const [keys, values] = [allocate('keys'), allocate('values')];
      const tokens = this.#tokens;
      const lists = memories.map((memory) => [
        kernels.launch('decompress', { tokens }, { ...memory.bindingsOf(0), keys, values }),
      ]);
      return { lists, bytes, cold, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  release(): void {
    for (const memory of this.#caches.memories) memory.release();
  }
}
