import { halfPrecisionBytes } from '../../codegen/plan/layout.js';
import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import type { SequenceLengths } from '../record.js';
import { outputDifference } from '../reference/attention.js';
import { decodeSequence } from '../reference/sequence.js';
import { unpackShare } from '../reference/unpackShare.js';
import { codeValues } from '../verify/codeValues.js';
import { type LayerActivations, lastQuery } from './activations.js';
import { outputsOver } from './attentionOutputs.js';

/** One layer of real activations, compressed and attended by the kernels. */
export interface LayerResult {
  readonly layer: number;
  /** Arithmetic alone: max |kernel - reference| / max |reference|, both on the codes that the kernels wrote. */
  readonly maxError: number;
  /** What compression costs: against the uncompressed activations, over all recorded queries. */
  readonly attentionError: number;
  /** The part of that error along the exact outputs: -0.03 means that they shrink by 3 %. */
  readonly attentionBias: number;
  /** The same error with only the keys, or only the values, compressed. */
  readonly keysOnlyError: number;
  readonly valuesOnlyError: number;
  /** Allocated for one sequence. */
  readonly bytes: number;
  readonly fp16Bytes: number;
  /** Zero when the codes came from another backend. */
  readonly encodeMs: number;
  /** The backend that compressed the layer: this one, or the one whose codes it read. */
  readonly codesFrom: string;
  readonly attendMs: number;
  /** Of the float64 reference that judges. */
  readonly referenceMs: number;
}

/** A compressed layer, as one backend hands it to another. */
export interface LayerCodes {
  readonly from: string;
  readonly share: Uint8Array;
  readonly lengths: SequenceLengths;
}

/**
 * Compresses a layer on a device, or takes the codes of another backend, attends its last query, and holds the result
 * to the float64 reference.
 */
export async function measureLayer(
  kernels: LoadedKernels,
  activations: LayerActivations,
  given?: LayerCodes,
): Promise<{ readonly result: LayerResult; readonly codes: LayerCodes }> {
  const { geometry } = kernels;
  const { layer, tokens, exact, queries, visible } = activations;
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0, layer });
  try {
    const started = performance.now();
    if (given) await cache.writeShare(0, given.share, given.lengths);
    else {
      const { keyBits, valueBits, queryBits } = activations;
      await cache.prefill(0, { keys: keyBits, values: valueBits, queries: queryBits, tokens });
    }
    const encoded = performance.now();
    const query = lastQuery(queries);
    const output = await cache.attend(query.bits);
    const attended = performance.now();

    const codes = given ?? {
      from: kernels.device.kind,
      share: await cache.readShare(0),
      lengths: await cache.lengths(0),
    };
    const before = performance.now();
    const parts = unpackShare(geometry, cache.layout, codes.share, codes.lengths, codeValues(geometry));
    const decoded = decodeSequence({ ...parts, rope: cache.rotation });
    const { slidingWindow = 0 } = cache.layer;
    const reference = outputsOver(geometry, decoded, { queries: query.rows, visible: [tokens], slidingWindow });
    const asked = { queries, visible, slidingWindow };
    const whole = outputsOver(geometry, exact, asked);
    const lost = (keys: typeof exact, values: typeof exact) =>
      outputDifference(whole, outputsOver(geometry, { keys: keys.keys, values: values.values }, asked));
    const both = lost(decoded, decoded);
    const result = {
      layer,
      maxError: largestDifference(output, reference),
      attentionError: both.error,
      attentionBias: both.bias,
      keysOnlyError: lost(decoded, exact).error,
      valuesOnlyError: lost(exact, decoded).error,
      bytes: cache.bytes,
      fp16Bytes: halfPrecisionBytes(geometry, tokens),
      encodeMs: given ? 0 : encoded - started,
      codesFrom: codes.from,
      attendMs: attended - encoded,
      referenceMs: performance.now() - before,
    };
    return { result, codes };
  } finally {
    await cache.release();
  }
}

/** Infinite where a result is not a number, so that no bar lets it pass. */
function largestDifference(output: Float32Array, reference: Float64Array): number {
  let difference = 0;
  let largest = 0;
  for (let i = 0; i < reference.length; i++) {
    const distance = Math.abs(output[i]! - reference[i]!);
    difference = Number.isFinite(distance) ? Math.max(difference, distance) : Infinity;
    largest = Math.max(largest, Math.abs(reference[i]!));
  }
  return difference / largest;
}
