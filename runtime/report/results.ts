import type { LayerResult } from './measure.js';

/** A scheme on one backend. */
export type BackendResult = BackendRun | BackendSkip;

export interface BackendRun {
  readonly backend: string;
  readonly status: 'ran';
  /** Adapter or compiler. */
  readonly description: string;
  /** Arithmetic of the kernels. */
  readonly precision: string;
  readonly layers: readonly LayerResult[];
  /** Largest of the layers. */
  readonly maxError: number;
  /** What the largest error must not exceed. */
  readonly bar: number;
  readonly generateMs: number;
  readonly compileMs: number;
  readonly encodeMs: number;
  readonly attendMs: number;
  readonly referenceMs: number;
}

export interface BackendSkip {
  readonly backend: string;
  readonly status: 'skipped';
  readonly reason: string;
  readonly hint: string;
}

export interface SchemeResult {
  readonly scheme: string;
  /** Of a scheme with low-rank keys. */
  readonly rank?: number;
  /** fp16 bytes over the bytes allocated. */
  readonly ratio: number;
  readonly bytes: number;
  readonly fp16Bytes: number;
  /** Mean over the layers, on the codes of the first backend that ran. */
  readonly attentionError: number;
  readonly backends: readonly BackendResult[];
}

/** The backend whose codes the report shows. */
export function firstRun({ backends }: SchemeResult): BackendRun | undefined {
  return backends.find((each): each is BackendRun => each.status === 'ran');
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
