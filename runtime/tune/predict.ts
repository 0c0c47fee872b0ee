import { evaluateExtent, type KernelDescriptor } from '../../codegen/manifest.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { ShapeClass } from './shapeClass.js';

/** What a prediction needs of a device. */
export interface DeviceFigures {
  readonly multiprocessors: number;
  /** Shared memory of a block, at most; a multiprocessor has little more. */
  readonly sharedBytes: number;
}

/** What a stage does in all, whatever its tunables. */
export interface StageWork {
  readonly bytes: number;
  readonly operations: number;
}

// Predictions only put candidates in order. These are figures of one multiprocessor of an H100, rounded; other devices
// have others, but much the same ratios.
const bytesPerMicrosecond = 30_000;
const operationsPerMicrosecond = 3_000_000;
const launchMicroseconds = 2;
const threadsPerMultiprocessor = 2048;
const blocksPerMultiprocessor = 32;
/** Warps of a multiprocessor that hide the latency of its memory. */
const warpsThatHide = 16;

/** The bytes that a stage reads at least once, and the operations of its largest product. */
export function stageWork(g: Geometry, { sequences, tokens }: ShapeClass, stage: string): StageWork {
  const all = sequences * tokens;
  // The product with the basis; where there is none, as much as two operations a channel.
  const operations = all * g.width * 2 * (g.family === 'low-rank' ? g.rank : 1);
  if (stage !== 'attend') return { bytes: all * g.width * 4, operations };
  return { bytes: all * (g.keyRowWords + g.valueRowWords) * 4, operations };
}

/**
 * Microseconds of one run of a stage's kernels: their blocks come in waves of as many as the multiprocessors hold, by
 * threads and shared memory; a wave takes the time of its bytes or its operations, whichever is longer, more where there
 * are too few warps to hide latency, and the time to fill the shared memory of its blocks.
 *
 * @param dimensions sizes that the kernels' grids are made of
 */
export function predictMicroseconds(
  kernels: readonly KernelDescriptor[],
  dimensions: Readonly<Record<string, number>>,
  work: StageWork,
  device: DeviceFigures,
): number {
  return kernels.reduce((sum, kernel) => {
    const blocks = kernel.grid.reduce((product: number, extent) => product * evaluateExtent(extent, dimensions), 1);
    if (blocks === 0) return sum;
    const shared = kernel.sharedBytes.fixed + kernel.sharedBytes.dynamic;
    const resident = Math.max(
      1,
      Math.min(
        blocksPerMultiprocessor,
        Math.floor(threadsPerMultiprocessor / kernel.threads),
        shared === 0 ? blocksPerMultiprocessor : Math.floor(device.sharedBytes / shared),
        Math.ceil(blocks / device.multiprocessors),
      ),
    );
    const waves = Math.ceil(blocks / (resident * device.multiprocessors));
    const part = resident / blocks / kernels.length;
    const busy = Math.max(
      (work.bytes * part) / bytesPerMicrosecond,
      (work.operations * part) / operationsPerMicrosecond,
    );
    const hidden = Math.min(1, (resident * kernel.threads) / 32 / warpsThatHide);
    return sum + launchMicroseconds + waves * (busy / hidden + (shared * resident) / bytesPerMicrosecond);
  }, 0);
}
