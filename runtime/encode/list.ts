import type { BufferRange, DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';

/** Buffers of one prompt on the device. */
export interface EncodeInput {
  /** Record of the sequence, lengths already set. */
  readonly sequence: BufferRange;
  /** f16 [KV heads][prompt tokens][head dim], keys after RoPE. */
  readonly keys: BufferRange;
  /** Left out for latents, which are keys and values at once. */
  readonly values?: BufferRange;
  /** f16 [heads][query tokens][head dim], after RoPE at the last positions, where the scheme weighs by queries. */
  readonly queries?: BufferRange;
  readonly tables: BufferRange;
  readonly cache: BufferRange;
  /** A fit of other text, whose parts of the share are already written. */
  readonly fit?: { readonly weights: BufferRange; readonly vectors: BufferRange; readonly columnScales: BufferRange };
}

/** Sizes that decide the grids. */
export interface EncodeSizes {
  readonly promptTokens: number;
  /** Tokens of the compressed middle. */
  readonly middleTokens: number;
  /** Queries that came with the prompt; 0 where nothing is weighted. */
  readonly queryTokens: number;
}

/** A list of launches in the making, and its scratch. */
export class EncodeList {
  readonly launches: Launch[] = [];
  readonly #kernels: LoadedKernels;
  readonly #sizes: EncodeSizes;
  readonly #owned: DeviceBuffer[];

  /** @param owned takes the scratch as it is allocated, so that the caller can release it whatever happens */
  constructor(kernels: LoadedKernels, sizes: EncodeSizes, owned: DeviceBuffer[]) {
    this.#kernels = kernels;
    this.#sizes = sizes;
    this.#owned = owned;
  }

  /** Scratch of so many numbers of 32 bits. */
  words(label: string, count: number): BufferRange {
    const buffer = this.#kernels.device.allocate(label, Math.max(1, count) * 4);
    this.#owned.push(buffer);
    return { buffer };
  }

  launch(entry: string, bindings: Record<string, BufferRange>): void {
    this.launches.push(this.#kernels.launch(entry, { ...this.#sizes }, bindings));
  }

  /** Blocks along an axis: partial results have a row for every tile, and how long a tile is, is the kernel's own choice. */
  tiles(entry: string, axis: 0 | 1 | 2): number {
    return this.#kernels.launch(entry, { ...this.#sizes }, {}).grid[axis];
  }
}
