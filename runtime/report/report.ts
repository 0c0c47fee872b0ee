import type { Geometry } from '../../dsl/geometry.js';
import type { LayerActivations } from './activations.js';
import { drawFigures } from './figures.js';
import { type Cell, renderPage } from './page.js';
import { type BackendResult, type BackendRun, firstRun, mean, type SchemeResult } from './results.js';

export interface ReportInput {
  readonly version: string;
  /** What the activations were recorded from. */
  readonly source: string;
  readonly geometry: Geometry;
  readonly layers: readonly LayerActivations[];
  readonly schemes: readonly SchemeResult[];
}

const percent = (part: number) => `${(part * 100).toFixed(1)}%`;
const milliseconds = (ms: number) => (ms < 10_000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** The report of a demo run: one HTML text that fetches nothing. */
export async function buildReport(input: ReportInput): Promise<string> {
  const { geometry, layers, schemes, source, version } = input;
  const [scheme] = schemes;
  const { tokens } = layers[0]!;
  const run = firstRun(scheme!)!;
  const names = layers.map(({ layer }) => layer).join(', ');
  return renderPage({
    title: `A KV cache ${scheme!.ratio.toFixed(2)} times smaller`,
    lead: `${scheme!.scheme} on keys and values that ${source} computed over ${tokens} tokens, ${layers.length > 1 ? 'layers' : 'layer'} ${names}: compressed and attended by the generated kernels, and every result held to a float64 reference on the same codes.`,
    facts: [
      { value: `${scheme!.ratio.toFixed(2)}x`, label: 'smaller than fp16, as allocated' },
      { value: (scheme!.bytes / tokens).toFixed(1), label: `bytes a token and layer (fp16: ${geometry.width * 4})` },
      { value: percent(scheme!.attentionError), label: 'attention error, mean of the layers' },
      { value: run.maxError.toExponential(1), label: `largest kernel error (${run.backend})` },
    ],
    tables: [
      {
        title: 'Backends',
        caption:
          'Kernel error: largest difference from the float64 reference over the largest reference output, both on the codes that the kernels wrote; arithmetic alone. Times are sums over the layers on a CPU and say nothing of a GPU.',
        grid: {
          columns: ['backend', 'kernel error', 'bar', 'attention error', 'encode', 'attend'],
          rows: schemes.flatMap(({ backends }) => backends.map(row)),
        },
      },
    ],
    figures: await drawFigures(schemes, layers, geometry),
    footer: `kvforge ${version}. ${geometry.kvHeads} KV heads of ${geometry.headDim} channels, ${geometry.heads} query heads${geometry.family === 'low-rank' ? `; rank ${geometry.rank}` : ''}.`,
  });
}

function row(result: BackendResult): readonly Cell[] {
  if (result.status === 'skipped') {
    return [{ text: `${result.backend}: skipped`, below: result.reason }, '', '', '', '', ''];
  }
  const { backend, precision, description, maxError, bar, layers, attendMs } = result;
  return [
    { text: `${backend}: ${precision}`, below: description },
    maxError.toExponential(1),
    bar.toExponential(0),
    percent(mean(layers.map(({ attentionError }) => attentionError))),
    encodeCell(result),
    milliseconds(attendMs),
  ];
}

/** A backend may have attended over another's codes: then its time is of the layers that it compressed itself. */
function encodeCell({ backend, layers, encodeMs }: BackendRun): Cell {
  const own = layers.filter(({ codesFrom }) => codesFrom === backend).map(({ layer }) => layer);
  const time = milliseconds(encodeMs);
  return own.length === layers.length ? time : { text: time, below: `layer ${own.join(', ')}` };
}
