import type { BenchDocument, BenchRow } from '../bench/schema.js';
import { type HistoryPoint, historyChart, ratioChart, rooflineChart } from './benchCharts.js';
import { type Cell, type Figure, type Grid, renderPage, type Table } from './page.js';
import { drawChart } from './svg.js';

/** The report of `kvforge bench`: one HTML text that fetches nothing. */
export async function buildBenchReport(
  document: BenchDocument,
  history: readonly HistoryPoint[] = [],
): Promise<string> {
  const { rows, model, device, driver, clock, kvforge, commit, command, cudnn } = document;
  const attends = rows.filter(({ stage }) => stage === 'attend');
  const figures = await Promise.all([
    ...ratioFigures(attends),
    ...rooflineFigures(attends, document),
    ...historyFigures(history),
  ]);
  const source = commit === null ? '' : `, commit ${commit.hash.slice(0, 12)}${commit.modified ? ' with changes' : ''}`;
  const baseline =
    'missing' in cudnn ? cudnn.missing : `torch ${cudnn.torch}, cuDNN ${cudnn.cudnn}, CUDA ${cudnn.cuda}`;
  return renderPage({
    title: `Attention over a compressed cache: ${model}`,
    lead: `Measured on ${device}, driver ${driver}, by the ${clock}'s clock: medians of samples that were taken in turn, so that a drift of the clocks meets all alike. Inputs rotate through more than the last-level cache holds; where they do not, or its size is not known, the rate says warm.`,
    facts: factsOf(document),
    tables: [
      ...attendTable(attends, document),
      ...encodeTable(rows.filter(({ stage }) => stage === 'encode')),
      ...skippedTable(document),
    ],
    figures,
    footer: `kvforge ${kvforge}${source}. ${command}. cuDNN: ${baseline}.`,
  });
}

function factsOf({ rows, ceiling, baseline }: BenchDocument) {
  const best = rows.filter(
    ({ ratio, scheme, stage }) => ratio !== null && stage === 'attend' && scheme !== 'fp16' && scheme !== 'cudnn',
  );
  const top = best.reduce<BenchRow | undefined>((a, b) => (a === undefined || b.ratio! > a.ratio! ? b : a), undefined);
  const wrong = rows.filter(({ correct }) => !correct).length;
  return [
    ...(top
      ? [
          {
            value: `${top.ratio!.toFixed(2)}x`,
            label: `best ratio to ${baseline === 'cudnn' ? 'cuDNN' : baseline}: ${top.scheme}, ${top.shape}`,
          },
        ]
      : []),
    { value: rateText(ceiling.gbps), label: 'read by a kernel that only reads' },
    { value: String(rows.length), label: 'measurements' },
    { value: String(wrong), label: 'of them wrong' },
  ];
}

const fixed = (value: number | null, digits: number) => (value === null ? '' : value.toFixed(digits));
const errorText = (error: number | null) => (error === null ? 'no number' : error.toExponential(1));

function attendTable(rows: readonly BenchRow[], { ceiling }: BenchDocument): readonly Table[] {
  if (rows.length === 0) return [];
  const grid: Grid = {
    columns: ['', 'shape', 'us', 'GB/s', 'roofline', 'error', 'to fp16', 'to cuDNN', 'MB'],
    rows: rows.map((row): readonly Cell[] => [
      below(row.scheme, [...(row.splits === null ? [] : [`${row.splits} splits`]), ...row.notes]),
      row.shape,
      { text: row.us.toFixed(1), below: `spread ${row.spread.toFixed(1)}` },
      row.cold ? rate(row.gbps) : { text: rate(row.gbps), below: 'warm' },
      `${(row.roofline * 100).toFixed(0)}%`,
      errorText(row.maxError),
      fixed(row.ratioFp16, 2),
      fixed(row.ratioCudnn, 2),
      (row.bytes / 1e6).toFixed(2),
    ]),
  };
  const caption = `Decode attention, one query token a sequence. Roofline: the larger of the share of what a kernel that only reads gets (${rateText(ceiling.gbps)}, measured in this run) and, where it is known, of the operations that the device is specified for. Error: against float64 on the same inputs, over the largest output.`;
  return [{ title: 'Attention', caption, grid }];
}

function encodeTable(rows: readonly BenchRow[]): readonly Table[] {
  if (rows.length === 0) return [];
  const grid: Grid = {
    columns: ['', 'shape', 'ms', 'torch, ms', 'times as fast'],
    rows: rows.map((row): readonly Cell[] => [
      below(row.scheme, [row.checked, ...row.notes]),
      row.shape,
      { text: (row.us / 1e3).toFixed(2), below: `spread ${(row.spread / 1e3).toFixed(2)}` },
      row.baselineUs === null ? '' : (row.baselineUs / 1e3).toFixed(2),
      fixed(row.ratio, 1),
    ]),
  };
  return [
    { title: 'Encode', caption: 'From a prompt to a finished cache of one layer, as one list of launches.', grid },
  ];
}

function below(text: string, lines: readonly string[]): Cell {
  return lines.length === 0 ? text : { text, below: lines.join('; ') };
}

function rate(gbps: number): string {
  return gbps.toFixed(gbps < 10 ? 3 : 0);
}

function rateText(gbps: number): string {
  return `${rate(gbps)} GB/s`;
}

function skippedTable({ skipped }: BenchDocument): readonly Table[] {
  if (skipped.length === 0) return [];
  const grid: Grid = {
    columns: ['', 'stage', 'shape'],
    rows: skipped.map(({ scheme, stage, shape, reason }) => [{ text: scheme, below: reason }, stage, shape]),
  };
  return [{ title: 'Not measured', caption: 'What was asked for, and why there is no figure.', grid }];
}

function ratioFigures(rows: readonly BenchRow[]): readonly Promise<Figure>[] {
  const of = (field: 'ratioCudnn' | 'ratioFp16', own: string) =>
    rows.flatMap(({ scheme: series, shape, [field]: ratio }) =>
      ratio === null || series === own ? [] : [{ series, shape, ratio }],
    );
  const figure = async (name: string, to: string, bars: ReturnType<typeof of>): Promise<Figure> => ({
    title: `Against ${to}`,
    caption: `Times faster than ${to} on the same shapes in the same run; above the dashed line is faster.`,
    svg: await drawChart(name, ratioChart(bars)),
  });
  const [cudnn, fp16] = [of('ratioCudnn', 'cudnn'), of('ratioFp16', 'fp16')];
  return [
    ...(cudnn.length > 0 ? [figure('ratioCudnn', 'cuDNN', cudnn)] : []),
    ...(fp16.length > 0 ? [figure('ratioFp16', 'the fp16 kernel of kvforge', fp16)] : []),
  ];
}

function rooflineFigures(rows: readonly BenchRow[], { ceiling }: BenchDocument): readonly Promise<Figure>[] {
  const points = rows.flatMap(({ scheme: series, shape, intensity, operations, us, correct }) =>
    !correct || operations === null || intensity === null || operations === 0
      ? []
      : [{ series, shape, intensity, teraoperations: operations / us / 1e6 }],
  );
  if (points.length === 0) return [];
  const ceilings = { bytesPerSecond: ceiling.gbps * 1e9, operations: ceiling.operations };
  const draw = async (): Promise<Figure> => ({
    title: 'Roofline',
    caption: `The line is what the device allows: as many operations as the bytes that it reads feed${ceiling.operations === null ? '; how many operations it can do at most is not known here' : ', and no more than it is specified for'}. Operations are those of the definition, so that a kernel which saves some of them may lie above the line.`,
    svg: await drawChart('roofline', rooflineChart(points, ceilings)),
  });
  return [draw()];
}

function historyFigures(history: readonly HistoryPoint[]): readonly Promise<Figure>[] {
  if (history.length === 0) return [];
  const draw = async (): Promise<Figure> => ({
    title: 'How the tuner got on',
    caption: 'The best time found until then, by stage and shape.',
    svg: await drawChart('history', historyChart(history)),
  });
  return [draw()];
}
