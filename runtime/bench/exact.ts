import type { HeadGeometry } from '../../dsl/headGeometry.js';
import { layerShape } from '../../dsl/model.js';
import { scoped } from '../cache/scoped.js';
import type { DeviceBuffer, Launch } from '../device.js';
import { Fp16Attention, fp16Splits } from '../fp16Attention.js';
import type { LoadedKernels } from '../kernels.js';
import type { HeadTensor } from '../reference/shapes.js';
import type { ShapeClass } from '../tune/shapeClass.js';
import { seenOf } from '../tune/visible.js';
import { endsOf, runPoisoned, sampledRows, worstOfHead } from './checkOutputs.js';
import { type Checked, type Contender, copiesFor, WriteQueue } from './contender.js';
import { valuesOfHalves } from './halfTable.js';
import { normalHalves } from './inputs.js';
import { attendOperations } from './operations.js';

export interface ExactInput {
  readonly shape: ShapeClass;
  readonly seed: number;
  /** What the largest error must not exceed. */
  readonly bar: number;
  /** What the kernels were generated with. */
  readonly tunables: Contender['tunables'];
}

/** kvforge's own attention over f16 keys and values: every sequence and copy holds the same normal numbers. */
export class ExactAttention implements Contender {
  readonly name = 'fp16';
  readonly tunables: Contender['tunables'];
  readonly bytes: number;
  readonly bytesRead: number;
  readonly operations: number;
  readonly cold: boolean;
  readonly splits: readonly number[];
  readonly #kernels: LoadedKernels<HeadGeometry>;
  readonly #input: ExactInput;
  readonly #copies: readonly Fp16Attention[];
  readonly #keys: Uint16Array;
  readonly #values: Uint16Array;
  readonly #query: Uint16Array;

  private constructor(kernels: LoadedKernels<HeadGeometry>, input: ExactInput, prepared: Prepared) {
    const { geometry: g, device } = kernels;
    const { sequences } = input.shape;
    const { tokens: seen } = seenOf(g.model, input.shape);
    this.#kernels = kernels;
    this.tunables = input.tunables;
    this.#input = input;
    this.#copies = prepared.copies;
    this.cold = prepared.cold;
    this.#keys = prepared.keys;
    this.#values = prepared.values;
    this.#query = normalHalves({ heads: sequences * g.heads, tokens: 1, headDim: g.headDim }, input.seed);
    this.bytes = prepared.copies[0]!.bytes;
    this.bytesRead = sequences * seen * g.width * 4;
    this.operations = attendOperations(g, sequences * seen);
    this.splits = splitsToTry(sequences * g.kvHeads, seen, device.identity.multiprocessors);
  }

  static async open(kernels: LoadedKernels<HeadGeometry>, input: ExactInput): Promise<ExactAttention> {
    const { geometry: g, device } = kernels;
    const { sequences, tokens } = input.shape;
    const shape = { heads: g.kvHeads, tokens, headDim: g.headDim };
    const [keys, values] = [normalHalves(shape, input.seed + 1), normalHalves(shape, input.seed + 2)];
    const copies: Fp16Attention[] = [];
    const tokenBytes = sequences * g.width * 4;
    const { tokens: seen } = seenOf(g.model, input.shape);
    const sizes = { read: seen * tokenBytes, held: tokens * tokenBytes };
    const { copies: count, cold } = copiesFor(sizes, device.identity.cacheBytes);
    try {
      await scoped(async (owned) => {
        const marker = device.allocate('marker', 4);
        owned.push(marker);
        device.write(marker, new Uint32Array(1));
        const queue = new WriteQueue(() => device.read(marker));
        while (copies.length < count) {
          const copy = Fp16Attention.open(kernels, { sequences, tokens });
          copies.push(copy);
          for (let sequence = 0; sequence < sequences; sequence++) {
            copy.write(sequence, { keys, values, tokens });
            await queue.wrote(keys.byteLength + values.byteLength);
          }
        }
      });
      return new ExactAttention(kernels, input, { copies, keys, values, cold });
    } catch (fault) {
      for (const copy of copies) copy.release();
      throw fault;
    }
  }

  get copies(): number {
    return this.#copies.length;
  }

  lists(splits: number, owned: DeviceBuffer[]): readonly (readonly Launch[])[] {
    return this.#copies.map((copy) => copy.launches(this.#query, { splits }, owned).launches);
  }

  async check(splits: number): Promise<Checked> {
    const { geometry: g, device } = this.#kernels;
    const { bar, seed, shape } = this.#input;
    const output = await scoped(async (owned) => {
      const run = this.#copies[0]!.launches(this.#query, { splits }, owned);
      return runPoisoned(device, run.launches, run.output);
    });
    const kvHead = seed % g.kvHeads;
    const sequences = endsOf(shape.sequences);
    const held = { keys: this.#headOf(this.#keys, kvHead), values: this.#headOf(this.#values, kvHead) };
    const { slidingWindow = 0 } = layerShape(g.model, 0);
    const maxError = worstOfHead(g, { output, query: this.#query, kvHead, held, sequences, slidingWindow });
    return { maxError, bar, what: sampledRows(g, kvHead, sequences) };
  }

  release(): void {
    for (const copy of this.#copies) copy.release();
  }

  #headOf(bits: Uint16Array, head: number): HeadTensor {
    const { headDim: channels } = this.#kernels.geometry;
    const { tokens } = this.#input.shape;
    const length = tokens * channels;
    return { heads: 1, tokens, channels, data: valuesOfHalves(bits.subarray(head * length, (head + 1) * length)) };
  }
}

interface Prepared {
  readonly copies: readonly Fp16Attention[];
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
  readonly cold: boolean;
}

/** The default number of splits, then those that give every multiprocessor one to eight blocks. */
function splitsToTry(rows: number, seen: number, multiprocessors?: number): readonly number[] {
  const usual = fp16Splits(rows, seen, multiprocessors);
  const waves = [2, 3, 4, 6, 8].map((wave) => fp16Splits(rows, seen, (multiprocessors ?? 0) * wave));
  return [...new Set([usual, ...(multiprocessors === undefined ? [] : waves)])];
}
