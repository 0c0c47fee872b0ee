import { z } from 'zod';

/** Form of the document; another number for any change that a reader would notice. */
export const compareFormat = 1;

const name = z.string().min(1);
const positive = z.number().positive();
const error = z.number().nonnegative();
const shape = z.string().regex(/^\d+x\d+$/);

/** Of one layer; null for what was no number. */
const layer = z.strictObject({
  layer: z.int().nonnegative(),
  tokens: z.int().positive(),
  /** Of attention outputs over the decoded cache, over the energy of the exact ones. */
  attentionError: error.nullable(),
  /** The part of it along the exact outputs: -0.03 means that they shrink by 3 %. */
  attentionBias: z.number().nullable(),
  /** With only the keys, or only the values, compressed. */
  keysOnlyError: error.nullable(),
  valuesOnlyError: error.nullable(),
  /** Of the kernels alone: against float64 on the codes that they wrote, over the largest output. */
  kernelError: error.nullable(),
});

const time = z.strictObject({
  stage: z.enum(['attend', 'encode']),
  shape,
  /** Median, microseconds. */
  us: positive,
  /** Median distance from the median. */
  spread: z.number().nonnegative(),
  /** Of the output that was timed; null if it was no number. */
  maxError: error.nullable(),
  errorBar: positive,
  correct: z.boolean(),
});

const row = z.strictObject({
  scheme: name,
  /** Allocated in one layer for the first shape; null where the scheme does not fit the model. */
  bytes: z.int().positive().nullable(),
  bytesPerToken: positive.nullable(),
  /** Bytes of f16 keys and values over these. */
  ratio: positive.nullable(),
  /** Means over the layers. */
  attentionError: error.nullable(),
  attentionBias: z.number().nullable(),
  /** Largest of the layers. */
  kernelError: error.nullable(),
  errorBar: positive.nullable(),
  /** Whether the kernels passed wherever they were held to float64; null where they never ran. */
  correct: z.boolean().nullable(),
  /** No other row that is correct has as few bytes and as small an attention error, and less of one of them. */
  front: z.boolean(),
  layers: z.array(layer),
  times: z.array(time),
  /** Why figures are missing. */
  reason: name.nullable(),
  notes: z.array(name),
});

/** What `kvforge compare` writes. */
export const compareDocument = z.strictObject({
  format: z.literal(compareFormat),
  kvforge: name,
  /** Of the sources, where they lie in a repository; `modified` if a file differs from it. */
  commit: z.strictObject({ hash: z.string().regex(/^[0-9a-f]{40}$/), modified: z.boolean() }).nullable(),
  command: name,
  model: name,
  /** What the activations were recorded from. */
  source: name,
  layers: z.array(z.int().nonnegative()).min(1),
  /** Of every head, in the first of the layers. */
  queries: z.int().positive(),
  device: name,
  driver: name,
  kind: z.enum(['emulator', 'webgpu', 'cuda']),
  architecture: z.string().nullable(),
  /** Bytes are those of the first. */
  shapes: z.array(shape).min(1),
  /** Why there are no times; null where they were asked of the device. */
  untimed: name.nullable(),
  /** Keys and values as they are. */
  fp16: z.strictObject({ bytes: z.int().positive(), bytesPerToken: positive, times: z.array(time) }),
  /** Fewest bytes first; those without figures last. */
  rows: z.array(row),
  /** Schemes of which a check failed. */
  failed: z.array(name),
  ms: z.number().nonnegative(),
});

export type CompareDocument = z.infer<typeof compareDocument>;
export type CompareRow = z.infer<typeof row>;
export type ComparedLayer = z.infer<typeof layer>;
export type ComparedTime = z.infer<typeof time>;
