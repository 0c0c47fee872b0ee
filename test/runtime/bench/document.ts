import { type Measured, rowsOf } from '../../../runtime/bench/rows.js';
import { type BenchDocument, benchDocument, benchFormat } from '../../../runtime/bench/schema.js';

const ceiling = { gbps: 4200, spread: 0.1, bytes: 2 ** 29, operations: 989.5e12 };

function measured(scheme: string, us: number, bytesRead: number): Measured {
  return {
    ...{ scheme, stage: 'attend', shape: { sequences: 16, tokens: 8192 }, splits: 4, copies: 5, cold: true },
    timing: { us, spread: 0.1, p10: us, p90: us, samples: 25 },
    ...{ bytes: bytesRead, bytesRead, operations: 6e10 },
    checked: { maxError: 3e-4, bar: 2e-3, what: 'some outputs' },
  };
}

/** A document as a run would give it. */
export function documentWith(change: Partial<BenchDocument> = {}, scheme = 'shard'): BenchDocument {
  const all = [measured(scheme, 80, 5e7), measured('fp16', 130, 5e8), measured('cudnn', 124, 5e8)];
  const rows = rowsOf(all, { bytesPerSecond: ceiling.gbps * 1e9, operations: ceiling.operations }, 'cudnn');
  return benchDocument.parse({
    format: benchFormat,
    kvforge: '0.1.0',
    commit: { hash: '0123456789abcdef0123456789abcdef01234567', modified: false },
    command: 'kvforge bench shard',
    model: 'llama-3.1-8b',
    ...{ device: 'NVIDIA H200', driver: '580.1', kind: 'cuda', architecture: 'sm_90a', clock: 'device' },
    cacheBytes: 62914560,
    ...{ seed: 1, baseline: 'cudnn' },
    cudnn: { torch: '2.11.0', cuda: '13.0', cudnn: '91900', device: 'NVIDIA H200' },
    ceiling,
    rows: [...rows],
    skipped: [],
    ms: 1000,
    ...change,
  } satisfies BenchDocument);
}
