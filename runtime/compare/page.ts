import { type Cell, type Figure, type Grid, renderPage } from '../report/page.js';
import { drawChart } from '../report/svg.js';
import { tableOf } from './cells.js';
import { frontChart } from './chart.js';
import type { CompareDocument } from './schema.js';

/** The report of `kvforge compare`: one HTML text that fetches nothing. */
export async function buildComparePage(document: CompareDocument): Promise<string> {
  const { model, source, layers, queries, device, driver, untimed, kvforge, commit, command, rows, fp16, failed } =
    document;
  const shape = document.shapes[0]!;
  const { columns, rows: texts } = tableOf(document);
  const grid: Grid = {
    columns: columns.map(({ title }) => title),
    rows: texts.map(({ cells: [scheme, ...others], remarks }): readonly Cell[] => [
      remarks.length === 0 ? scheme! : { text: scheme!, below: remarks.join('; ') },
      ...others,
    ]),
  };
  const front = rows.filter((row) => row.front);
  const named = `${layers.length > 1 ? 'layers' : 'layer'} ${layers.join(', ')}`;
  const changed = commit?.modified ? ' with changes' : '';
  const origin = commit === null ? '' : `, commit ${commit.hash.slice(0, 12)}${changed}`;
  return renderPage({
    title: `Schemes for ${model}: bytes against attention error`,
    lead: `Each scheme's kernels compressed the same keys and values, those of ${source}, ${named}, and the last ${queries} queries of every head were asked of what they had written. On ${device}, driver ${driver}.`,
    facts: [
      { value: String(rows.length), label: 'schemes' },
      { value: String(front.length), label: `on the front: ${front.map(({ scheme }) => scheme).join(', ') || 'none'}` },
      { value: fp16.bytesPerToken.toFixed(0), label: 'bytes a token and layer in fp16' },
      { value: String(failed.length), label: 'failed a check' },
    ],
    tables: [{ title: 'Schemes', caption: captionOf(document), grid }],
    figures: await figuresOf(document, shape),
    footer: `kvforge ${kvforge}${origin}. ${command}. ${untimed === null ? timesText(document) : `No times: ${untimed}.`}`,
  });
}

function captionOf({ shapes }: CompareDocument): string {
  return `Bytes are what is allocated in one layer for ${shapes[0]}. Error: of attention outputs against attention over the uncompressed activations, root of the squared error over the energy, mean over the layers. Bias: the part of it along the exact outputs; -3% means that outputs shrink by 3 %. Kernel error: of the kernels' arithmetic against float64 on the codes that they wrote. * marks the front: no other scheme has as few bytes and as small an error.`;
}

function timesText({ fp16 }: CompareDocument): string {
  const times = fp16.times.map(({ shape, us }) => `${us.toFixed(1)} us for ${shape}`).join(', ');
  return times === ''
    ? 'Times are medians by the device’s clock.'
    : `Times are medians by the device’s clock; attention over fp16 takes ${times}.`;
}

/** What is wrong, or has no figures, is not plotted. */
async function figuresOf({ rows }: CompareDocument, shape: string): Promise<readonly Figure[]> {
  const points = rows.flatMap(({ scheme, bytesPerToken, attentionError, correct, front }) =>
    bytesPerToken === null || attentionError === null || correct !== true
      ? []
      : [{ scheme, bytesPerToken, percent: attentionError * 100, front }],
  );
  if (points.length === 0) return [];
  return [
    {
      title: 'Bytes against attention error',
      caption:
        'Left and down is better. The dashed line is the front: for each number of bytes, the smallest error that one of these schemes reaches with as many.',
      svg: await drawChart('front', frontChart(points, shape)),
    },
  ];
}
