import { halfPrecisionBytes } from '../../codegen/plan/layout.js';
import { KvCache } from '../cache.js';
import type { LoadedKernels } from '../kernels.js';
import type { SequenceLengths } from '../record.js';
import { attend, attentionError } from '../reference/attention.js';
import { decodeSequence } from '../reference/sequence.js';
import { headRows, vectorAt } from '../reference/shapes.js';
import { unpackShare } from '../reference/unpackShare.js';
import { codeValues } from '../verify/codeValues.js';
import { type LayerActivations, lastQuery } from './activations.js';

/** One layer of real activations, compressed and attended by the kernels. */
export interface LayerResult {
  readonly layer: number;
  /** Arithmetic alone: max |kernel - reference| / max |reference|, both on the codes that the kernels wrote. */
  readonly maxError: number;
  /** What compression costs: against the uncompressed activations, over all recorded queries. */
  readonly attentionError: number;
  /** The same with only the keys, or only the values, compressed. */
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
  const cache = KvCache.open(kernels, { sequences: 1, tokens, generated: 0 });
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
    const decoded = decodeSequence(
      unpackShare(geometry, cache.layout, codes.share, codes.lengths, codeValues(geometry)),
    );
    const reference = referenceOutput(query.rows, decoded);
    const error = (keys: typeof exact, values: typeof exact) =>
      attentionError({ queries, exact, decoded: { keys: keys.keys, values: values.values }, visible });
    const result = {
      layer,
      maxError: largestDifference(output, reference),
      attentionError: error(decoded, decoded),
      keysOnlyError: error(decoded, exact),
      valuesOnlyError: error(exact, decoded),
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

function referenceOutput(query: ReturnType<typeof lastQuery>['rows'], cache: LayerActivations['exact']): Float64Array {
  const output = new Float64Array(query.heads * query.channels);
  const groupSize = query.heads / cache.keys.heads;
  for (let head = 0; head < query.heads; head++) {
    const kvHead = Math.floor(head / groupSize);
    const keys = headRows(cache.keys, kvHead);
    const values = headRows(cache.values, kvHead);
    output.set(attend({ query: vectorAt(query, head, 0), keys, values }).output, head * query.channels);
  }
  return output;
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
