import type { PlacedPart } from '../../codegen/plan/layout.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { type Move, moveLaunches } from '../cache/moves.js';
import type { BufferRange, Device, DeviceBuffer, Launch } from '../device.js';
import type { LoadedKernels } from '../kernels.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { fitParts } from './parts.js';

/** A fit in device memory. */
export interface FitBuffers {
  /** What the encoder's kernels read. */
  readonly encoder: {
    readonly weights: BufferRange;
    readonly vectors: BufferRange;
    readonly columnScales: BufferRange;
  };
  /** Parts of a share that depend on the fit alone, one after another, and where each goes. */
  readonly share: BufferRange;
  readonly places: readonly { readonly name: string; readonly word: number; readonly words: number }[];
}

/**
 * The fit of a cache's last calibrated prompt, in device memory: all prompts of a layer have the same one, and quantising and
 * uploading it (666 KB for Llama-3.1-8B) for each would cost as much again. It is known by identity, so a fit whose
 * numbers are changed in place is not noticed.
 */
export class KeptFit {
  #kept: { readonly fit: TiltFit; readonly buffers: FitBuffers; readonly owned: readonly DeviceBuffer[] } | undefined;

  of(device: Device, g: TiltGeometry, fit: TiltFit): FitBuffers {
    if (this.#kept?.fit === fit) return this.#kept.buffers;
    this.release();
    const owned: DeviceBuffer[] = [];
    try {
      const buffers = upload(device, g, fit, owned);
      this.#kept = { fit, buffers, owned };
      return buffers;
    } catch (fault) {
      for (const buffer of owned) buffer.release();
      throw fault;
    }
  }

  release(): void {
    for (const buffer of this.#kept?.owned ?? []) buffer.release();
    this.#kept = undefined;
  }
}

/**
 * Copies a fit's parts into a share.
 *
 * @param base bytes of the cache buffer before the share
 * @param owned takes the list of moves, so that the caller can release it
 */
export function shareLaunches(
  kernels: LoadedKernels,
  { share, places }: FitBuffers,
  to: { readonly parts: readonly PlacedPart[]; readonly base: number; readonly cache: BufferRange },
  owned: DeviceBuffer[],
): readonly Launch[] {
  const moves = places.map(({ name, word, words }): Move => {
    const { offset } = to.parts.find((part) => part.name === name)!;
    return [word, (to.base + offset) / 4, words];
  });
  return moveLaunches(kernels, 'move_words', moves, { origin: share, destination: to.cache }, owned);
}

function upload(device: Device, g: TiltGeometry, fit: TiltFit, owned: DeviceBuffer[]): FitBuffers {
  const { weights, vectors, columnScales, share } = fitParts(g, fit);
  const allocate = (label: string, bytes: number) => {
    const buffer = device.allocate(label, bytes);
    owned.push(buffer);
    return buffer;
  };
  const filled = (label: string, data: Float32Array) => {
    const buffer = allocate(label, data.byteLength);
    device.write(buffer, data);
    return { buffer };
  };
  const encoder = {
    weights: filled('weights', weights),
    vectors: filled('vectors', vectors),
    columnScales: filled('column_scales', columnScales),
  };
  const bytes = share.reduce((sum, [, part]) => sum + part.length, 0);
  const buffer = allocate('fit_share', bytes);
  let at = 0;
  const places = share.map(([name, part]) => {
    device.write(buffer, part, at);
    const place = { name, word: at / 4, words: part.length / 4 };
    at += part.length;
    return place;
  });
  return { encoder, share: { buffer }, places };
}
