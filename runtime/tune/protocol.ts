import type { Architecture, Target } from '../../dsl/stage.js';
import type { ShapeClass } from './shapeClass.js';
import type { NamedTunables } from './space.js';

/** What the tuner knows of a device without opening it. */
export interface DeviceFacts {
  readonly name: string;
  readonly driver: string;
  readonly architecture?: Architecture | undefined;
  readonly multiprocessors?: number | undefined;
  /** Shared memory of a block, at most. */
  readonly sharedBytes: number;
  /** Of WebGPU, as `Device.features` has them: they decide what its kernels are generated for. */
  readonly features: readonly string[];
  readonly clock: 'device' | 'host';
}

/** One stage's kernels on one shape. */
export interface Work {
  readonly stage: string;
  readonly shape: ShapeClass;
}

export interface Variant {
  readonly tunables: NamedTunables;
  readonly splits?: number | undefined;
}

/** Asked of the process that measures. */
export type Request =
  | { readonly type: 'open'; readonly scheme: string; readonly model: string; readonly device: string }
  | {
      readonly type: 'measure';
      readonly target: Target;
      readonly work: Work;
      readonly variant: Variant;
      /** The same texts were found right before. */
      readonly checked: boolean;
    }
  /** Compiles several at once, as many as there are processors; what does not compile is answered when it is measured. */
  | {
      readonly type: 'compile';
      readonly target: Target;
      readonly stage: string;
      readonly tunables: readonly NamedTunables[];
    }
  /** Times several again, in turns, so that a drift of clocks meets all of them. */
  | { readonly type: 'repeat'; readonly target: Target; readonly work: Work; readonly variants: readonly Variant[] };

/** What a request that failed is answered with: a `KvforgeError` as data. */
export interface Failure {
  readonly code: string;
  readonly at: string;
  readonly expected: string;
  readonly received: string;
  readonly hint: string;
}

/** Answers, one to each request. */
export type Reply =
  | { readonly type: 'opened'; readonly facts: DeviceFacts }
  | {
      readonly type: 'measured';
      /** Microseconds, at least one. */
      readonly samples: readonly number[];
      /** Largest error of an attention output, over its largest magnitude; absent where none was looked at now. */
      readonly error?: number | undefined;
      readonly bytes: number;
      readonly cold: boolean;
    }
  /** Not timed: the results are not those of the reference. */
  | { readonly type: 'wrong'; readonly reason: string }
  /** Not tried: the device has no room for its blocks. */
  | { readonly type: 'refused'; readonly reason: string }
  | { readonly type: 'compiled' }
  | { readonly type: 'repeated'; readonly samples: readonly (readonly number[])[] }
  | { readonly type: 'failed'; readonly failure: Failure };
