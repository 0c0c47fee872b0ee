import type { Geometry } from '../../dsl/geometry.js';
import type { ShapeClass } from '../tune/shapeClass.js';
import { isCold } from './contender.js';
import type { EncodeMeasured } from './encode.js';
import { type Ceilings, rowsOf } from './rows.js';
import type { BenchRow } from './schema.js';
import type { TorchEncode } from './torchEncode.js';

export interface Encoded {
  readonly scheme: string;
  readonly shape: ShapeClass;
  readonly measured: EncodeMeasured;
  readonly tunables: BenchRow['tunables'];
  /** The same steps in PyTorch. */
  readonly beside: TorchEncode | undefined;
}

/** What an encoder may err more than PyTorch's: both start from random directions. */
const tolerance = 1.02;

/** The row of an encode. Its baseline is PyTorch, whose reconstruction errors it must meet; without it, 1 is what zeros err. */
export function encodeRow(
  { scheme, shape, measured, tunables, beside }: Encoded,
  g: Geometry,
  ceilings: Ceilings,
  cacheBytes: number | undefined,
): BenchRow {
  const { keysError, valuesError, timing, bytes } = measured;
  const pairs = [
    { maxError: orInfinite(keysError), bar: beside ? beside.keysError * tolerance : 1 },
    { maxError: orInfinite(valuesError), bar: beside ? beside.valuesError * tolerance : 1 },
  ];
  const worst = pairs.reduce((a, b) => (b.maxError / b.bar > a.maxError / a.bar ? b : a));
  const torch = beside ? `; torch ${beside.keysError.toFixed(4)} and ${beside.valuesError.toFixed(4)}` : '';
  const what = `reconstruction of the middle: keys ${keysError.toFixed(4)}, values ${valuesError.toFixed(4)}${torch}`;
  const bytesRead = shape.tokens * g.width * 4;
  const [row] = rowsOf(
    [
      {
        ...{ scheme, stage: 'encode', shape, tunables, copies: 1, timing, bytes, checked: { ...worst, what } },
        ...{ bytesRead, cold: isCold(bytesRead, cacheBytes) },
      },
    ],
    ceilings,
    'fp16',
  );
  if (beside === undefined) return row!;
  const baselineUs = beside.ms * 1000;
  const published = `torch with svd_lowrank: ${beside.publishedMs.toFixed(1)} ms`;
  return {
    ...row!,
    baselineUs,
    ratio: row!.correct ? baselineUs / timing.us : null,
    notes: [...row!.notes, published],
  };
}

/** What is not a number compares as no larger than anything. */
function orInfinite(error: number): number {
  return Number.isNaN(error) ? Number.POSITIVE_INFINITY : error;
}
