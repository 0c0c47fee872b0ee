import { z } from 'zod';

/** Form of the document; another number for any change that a reader would notice. */
export const benchFormat = 2;

const name = z.string().min(1);
const positive = z.number().positive();
const share = z.number().nonnegative();
const ratio = positive.nullable();

const timing = {
  /** Median, microseconds. */
  us: positive,
  /** Median distance from the median. */
  spread: z.number().nonnegative(),
  p10: positive,
  p90: positive,
  samples: z.int().positive(),
};

const row = z.strictObject({
  /** A scheme, `fp16` for kvforge's own kernel without compression, `cudnn`, or `torch` for its encode steps. */
  scheme: name,
  stage: z.enum(['attend', 'encode']),
  /** BATCHxTOKENS */
  shape: z.string().regex(/^\d+x\d+$/),
  /** Blocks that share a row of tokens, and what the others that were tried took; none where kvforge does not choose. */
  splits: z.int().positive().nullable(),
  sweep: z.array(z.strictObject({ splits: z.int().positive(), us: positive })),
  /** By stage, what the kernels were generated with. */
  tunables: z.record(z.string(), z.record(z.string(), z.union([z.number(), z.string()]))),
  /** Copies of the inputs that the launches rotate through. */
  copies: z.int().positive(),
  /** What a run reads comes from memory: the copies are twice the last-level cache or more, and its size is known. */
  cold: z.boolean(),
  ...timing,
  /** Allocated for the tokens. */
  bytes: z.int().positive(),
  /** Read by one run, each byte once. */
  bytesRead: z.int().positive(),
  /** Read in a second, in units of 1e9 bytes. */
  gbps: positive,
  /** Multiplications and additions of the definition. */
  operations: z.int().nonnegative().nullable(),
  /** Operations for a byte that is read. */
  intensity: z.number().nonnegative().nullable(),
  /** Rate of reading over that of a kernel that only reads. */
  byteShare: share,
  /** Rate of operations over what the device is specified for, where that is known. */
  operationShare: share.nullable(),
  /** The larger of both: the time that the nearer ceiling allows, over the time taken. */
  roofline: share,
  /** Of the output, over its largest magnitude, against float64 on the same inputs; null if it was not a number. */
  maxError: z.number().nonnegative().nullable(),
  errorBar: positive,
  /** What was compared. */
  checked: name,
  correct: z.boolean(),
  baselineUs: ratio,
  /** Times faster than the baseline. */
  ratio,
  ratioFp16: ratio,
  ratioCudnn: ratio,
  notes: z.array(z.string()),
});

const skipped = z.strictObject({
  scheme: name,
  stage: z.enum(['attend', 'encode']),
  shape: z.string(),
  reason: name,
});

/** What `kvforge bench` writes. */
export const benchDocument = z.strictObject({
  format: z.literal(benchFormat),
  kvforge: name,
  /** Of the sources, where they lie in a repository; `modified` if a file differs from it. */
  commit: z.strictObject({ hash: z.string().regex(/^[0-9a-f]{40}$/), modified: z.boolean() }).nullable(),
  command: name,
  model: name,
  device: name,
  driver: name,
  kind: z.enum(['emulator', 'webgpu', 'cuda']),
  architecture: z.string().nullable(),
  /** Whose clock the times are of. */
  clock: z.enum(['device', 'host']),
  cacheBytes: z.int().positive().nullable(),
  seed: z.int().nonnegative(),
  baseline: z.enum(['cudnn', 'fp16']),
  /** Versions of what cuDNN ran in, or why it did not. */
  cudnn: z.union([
    z.strictObject({ torch: name, cuda: name, cudnn: name, device: name }),
    z.strictObject({ missing: name }),
  ]),
  ceiling: z.strictObject({
    /** Of a kernel that only reads, in this run; in units of 1e9 bytes a second. */
    gbps: positive,
    spread: z.number().nonnegative(),
    bytes: z.int().positive(),
    /** Specified operations a second; null for a device that is not listed. */
    operations: positive.nullable(),
  }),
  rows: z.array(row),
  skipped: z.array(skipped),
  ms: z.number().nonnegative(),
});

export type BenchDocument = z.infer<typeof benchDocument>;
export type BenchRow = z.infer<typeof row>;
export type BenchSkip = z.infer<typeof skipped>;
