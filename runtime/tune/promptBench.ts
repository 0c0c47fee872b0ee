import { KvforgeError } from '../../dsl/errors.js';
import { observedQueries } from '../../dsl/stages/observe.js';
import { promptLengths } from '../cache/lengths.js';
import { CacheMemory } from '../cache/memory.js';
import type { DeviceBuffer, Launch } from '../device.js';
import { encodeLaunches } from '../encode.js';
import type { LoadedKernels } from '../kernels.js';
import { type Bench, copiesFor, type Prepared, releaseAll } from './bench.js';
import { queryBits } from './cacheBench.js';
import type { ShapeClass } from './shapeClass.js';

/** Bytes of the buffers that launches bind, each counted once. */
function boundBytes(launches: readonly Launch[]): number {
  const buffers = new Map<DeviceBuffer, number>();
  for (const { bindings } of launches) {
    for (const { buffer, offset = 0, bytes = buffer.bytes - offset } of Object.values(bindings)) {
      buffers.set(buffer, Math.max(buffers.get(buffer) ?? 0, bytes));
    }
  }
  return [...buffers.values()].reduce((sum, bytes) => sum + bytes, 0);
}

/** One stage of the compression of a prompt: all stages run once, so that its inputs are those of a prompt. */
export class PromptBench implements Bench {
  readonly #tokens: number;
  readonly #stage: string;

  /** @param shape of which the tokens count: a prompt is compressed by itself, whatever the batch */
  constructor(stage: string, { tokens }: ShapeClass) {
    this.#stage = stage;
    this.#tokens = tokens;
  }

  async prepare(kernels: LoadedKernels): Promise<Prepared> {
    const { sinks, window } = kernels.geometry.scheme;
    if (promptLengths(kernels.geometry, this.#tokens).middleTokens === 0) {
      throw new KvforgeError('does-not-fit', {
        at: `${this.#stage}, ${this.#tokens} tokens`,
        expected: `more than ${sinks + window} (those that stay exact)`,
        received: String(this.#tokens),
        hint: 'Give more tokens.',
      });
    }
    const owned: DeviceBuffer[] = [];
    const memories: CacheMemory[] = [];
    const release = () => {
      releaseAll(owned);
      for (const memory of memories) memory.release();
    };
    try {
      const lists: (readonly Launch[])[] = [];
      const add = async () => {
        const memory = new CacheMemory(kernels, { sequences: 1, tokens: this.#tokens, generated: 0 });
        memories.push(memory);
        const launches = this.#launches(kernels, memory, owned);
        await kernels.device.run(launches);
        lists.push(launches.filter(({ kernel }) => kernel.descriptor.stage === this.#stage));
      };
      await add();
      const bytes = boundBytes(lists[0]!);
      const { copies, cold } = copiesFor(bytes, kernels.device.identity.cacheBytes);
      while (lists.length < copies) await add();
      return { lists, bytes, cold, release };
    } catch (error) {
      release();
      throw error;
    }
  }

  release(): void {}

  #launches(kernels: LoadedKernels, memory: CacheMemory, owned: DeviceBuffer[]): readonly Launch[] {
    const { device, geometry: g } = kernels;
    const upload = (label: string, data: Uint16Array) => {
      const buffer = device.allocate(label, data.byteLength);
      owned.push(buffer);
      device.write(buffer, data);
      return { buffer };
    };
    const promptTokens = this.#tokens;
    const queryTokens = g.weighted ? Math.min(observedQueries, promptTokens) : 0;
    const lengths = promptLengths(g, promptTokens);
    memory.writeRecord(0, lengths, { queryTokens });
    const input = {
      ...memory.bindingsOf(0),
      keys: upload('keys', queryBits(promptTokens * g.width)),
      values: upload('values', queryBits(promptTokens * g.width)),
      ...(queryTokens > 0 ? { queries: upload('queries', queryBits(queryTokens * g.heads * g.headDim)) } : {}),
    };
    return encodeLaunches(kernels, input, { promptTokens, middleTokens: lengths.middleTokens, queryTokens }, owned);
  }
}
