import {
  type CompareDocument,
  type ComparedLayer,
  type CompareRow,
  compareDocument,
  compareFormat,
} from '../../../runtime/compare/schema.js';

/** A row with figures, as a run would give it. */
export function rowWith(scheme: string, change: Partial<CompareRow> = {}): CompareRow {
  const { bytes = 200_000, attentionError = 0.05, attentionBias = -0.01, kernelError = 1e-4 } = change;
  const half = attentionError === null ? null : attentionError / 2;
  const layer: ComparedLayer = {
    ...{ layer: 14, tokens: 2048, attentionError, attentionBias, kernelError },
    ...{ keysOnlyError: half, valuesOnlyError: half },
  };
  return {
    ...{ scheme, bytes, attentionError, attentionBias, kernelError, errorBar: 2e-3, correct: true, front: false },
    bytesPerToken: bytes === null ? null : bytes / 2048,
    ratio: bytes === null ? null : 1_572_864 / bytes,
    ...{ layers: [layer], times: [], reason: null, notes: [] },
    ...change,
  };
}

/** A scheme that does not fit. */
export function rowWithout(scheme: string, reason: string): CompareRow {
  const none = { bytes: null, bytesPerToken: null, ratio: null, attentionError: null, attentionBias: null };
  return rowWith(scheme, { ...none, kernelError: null, errorBar: null, correct: null, layers: [], reason });
}

/** A document as a run would give it. */
export function comparisonWith(change: Partial<CompareDocument> = {}): CompareDocument {
  return compareDocument.parse({
    format: compareFormat,
    kvforge: '0.1.0',
    commit: { hash: '0123456789abcdef0123456789abcdef01234567', modified: true },
    command: 'kvforge compare',
    ...{ model: 'smollm2-135m', source: 'a recording', layers: [14], queries: 16 },
    ...{ device: 'CPU emulator of CUDA', driver: 'g++ 12', kind: 'emulator', architecture: null },
    ...{ shapes: ['1x2048'], untimed: 'a CPU measures no GPU' },
    fp16: { bytes: 1_572_864, bytesPerToken: 768, times: [] },
    rows: [
      rowWith('small', { bytes: 100_000, attentionError: 0.2, attentionBias: -0.07, front: true }),
      rowWith('large', { bytes: 400_000, attentionError: 0.025, attentionBias: 0.001, front: true }),
      rowWith('beaten', { bytes: 500_000, attentionError: 0.1 }),
      rowWithout('unfit', 'keys: expected less, got more'),
    ],
    failed: [],
    ms: 1000,
    ...change,
  } satisfies CompareDocument);
}
