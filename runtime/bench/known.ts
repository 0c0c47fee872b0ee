import type { ModelShape } from '../../dsl/model.js';
import { type ShapeClass, shapeText } from '../tune/shapeClass.js';

/** Tensor cores of a device: dense products of f16 operands with f32 sums, in operations a second. */
const peakOperations: Readonly<Record<string, number>> = {
  // NVIDIA H200 and H100 datasheets, SXM: 1979 TFLOP/s with sparsity, half of it without.
  'NVIDIA H200': 989.5e12,
  'NVIDIA H100 80GB HBM3': 989.5e12,
  // NVIDIA A100 datasheet.
  'NVIDIA A100-SXM4-40GB': 312e12,
  'NVIDIA A100-SXM4-80GB': 312e12,
};

/** The most operations a second that a device is specified to do; undefined for a device that is not listed. */
export function peakOperationsOf(device: string): number | undefined {
  return peakOperations[device];
}

interface KnownFigures {
  readonly device: string;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Microseconds by shape. */
  readonly us: Readonly<Record<string, number>>;
}

/**
 * What attention of cuDNN takes where it is installed and called well: torch 2.11 with CUDA 13.0, driver 580, measured
 * 2026-11-30 in a CUDA graph over inputs that miss the L2.
 */
const cudnnFigures: readonly KnownFigures[] = [
  {
    device: 'NVIDIA H200',
    heads: 32,
    kvHeads: 8,
    headDim: 128,
    us: { '1x8192': 15.3, '1x32768': 38.2, '1x131072': 127.5, '16x8192': 124, '16x32768': 483, '64x8192': 486 },
  },
];

/** A baseline that takes longer than this times the known figure is none. */
const slowest = 1.1;

/**
 * Why a time of cuDNN is no baseline: it is known to be faster on that device.
 *
 * @returns undefined where the time is as good as known, or nothing is known
 */
export function reasonAgainstBaseline(
  device: string,
  model: Pick<ModelShape, 'heads' | 'kvHeads' | 'headDim'>,
  shape: ShapeClass,
  us: number,
): string | undefined {
  const { heads, kvHeads, headDim } = model;
  const known = cudnnFigures.find(
    (each) => each.device === device && each.heads === heads && each.kvHeads === kvHeads && each.headDim === headDim,
  )?.us[shapeText(shape)];
  if (known === undefined || us <= known * slowest) return undefined;
  return `no baseline: cuDNN took ${us.toFixed(1)} us here, and is known to take ${known} us on an ${device}`;
}
