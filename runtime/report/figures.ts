import { layoutSequence, recordBytes } from '../../codegen/plan/layout.js';
import type { Geometry, LowRankGeometry } from '../../dsl/geometry.js';
import type { LayerActivations } from './activations.js';
import {
  type ByteShare,
  bytesChart,
  errorChart,
  histogramChart,
  type NamedHistogram,
  spectrumChart,
} from './charts.js';
import type { Figure } from './page.js';
import { firstRun, type SchemeResult } from './results.js';
import {
  column,
  columnMaxima,
  cumulativeEnergy,
  histogram,
  normalizedValues,
  plainKeys,
  tokenRows,
} from './statistics.js';
import { drawChart } from './svg.js';

const shownChannels = 3;
const bins = 48;

/** Every figure of the report, in reading order. */
export async function drawFigures(
  schemes: readonly SchemeResult[],
  layers: readonly LayerActivations[],
  geometry: Geometry,
): Promise<readonly Figure[]> {
  const middle = layers[Math.floor(layers.length / 2)]!;
  return Promise.all([
    errorFigure(schemes),
    bytesFigure(schemes, geometry, middle.tokens),
    keyFigure(middle, geometry),
    ...(geometry.family === 'low-rank' ? [spectrumFigure(layers, geometry)] : []),
    valueFigure(middle),
  ]);
}

async function keyFigure({ layer, exact }: LayerActivations, { model, headDim }: Geometry): Promise<Figure> {
  const after = tokenRows(exact.keys);
  const before = plainKeys(exact.keys, model.rope);
  const narrowing = Array.from({ length: after.columns }, (_, index) => {
    return { index, gain: deviation(column(after, index)) / deviation(column(before, index)) };
  });
  const chosen = narrowing.sort((a, b) => b.gain - a.gain).slice(0, shownChannels);
  const histograms = chosen.flatMap(({ index }): NamedHistogram[] => {
    const facet = `KV head ${Math.floor(index / headDim)}, channel ${index % headDim}`;
    const [rotated, plain] = [column(after, index), column(before, index)];
    const range = rangeOf(rotated, plain);
    return [
      { facet, series: 'after RoPE, as cached', bins: histogram(rotated, range, bins) },
      { facet, series: 'RoPE undone', bins: histogram(plain, range, bins) },
    ];
  });
  const least = chosen.at(-1)!.gain.toFixed(1);
  return {
    title: `Keys before and after RoPE is undone, layer ${layer}`,
    caption: `RoPE turns a channel with a steady mean into a wave over the positions: two humps. Undoing it gives one narrow peak, at least ${least} times narrower on these ${shownChannels} channels, those that gain most.`,
    svg: await drawChart('keys', histogramChart(histograms, 'value')),
  };
}

async function valueFigure({ layer, exact }: LayerActivations): Promise<Figure> {
  const plain = tokenRows(exact.values);
  const largest = columnMaxima(plain).reduce((most, value) => Math.max(most, value), 0);
  const range = [-1, 1] as const;
  const histograms = [
    {
      facet: 'as recorded, over the largest of the layer',
      series: 'before',
      bins: histogram(
        plain.data.map((value) => value / largest),
        range,
        bins,
      ),
    },
    {
      facet: 'after Hadamard, over each channel\u2019s maximum',
      series: 'after',
      bins: histogram(normalizedValues(exact.values).data, range, bins),
    },
  ];
  return {
    title: `Values before and after the Hadamard transform, layer ${layer}`,
    caption:
      'As recorded, a few channels set the scale and most numbers crowd around zero. The Hadamard transform spreads them over all channels, and dividing by each channel\u2019s maximum fills the range, so that one codebook serves all.',
    svg: await drawChart('values', histogramChart(histograms, 'value over scale')),
  };
}

async function spectrumFigure(
  layers: readonly LayerActivations[],
  { rank, width, model }: LowRankGeometry,
): Promise<Figure> {
  const spectra = layers.flatMap(({ layer, exact }) => [
    { layer, series: 'after RoPE, as cached', energy: cumulativeEnergy(tokenRows(exact.keys)) },
    { layer, series: 'RoPE undone', energy: cumulativeEnergy(plainKeys(exact.keys, model.rope)) },
  ]);
  const kept = (energy: readonly number[]) => `${Math.round(energy[rank - 1]! * 100)}%`;
  const gains = layers.map(({ layer }) => {
    const [cached, plain] = spectra.filter((each) => each.layer === layer);
    return `${kept(plain!.energy)} instead of ${kept(cached!.energy)} on layer ${layer}`;
  });
  return {
    title: 'How few directions hold the keys',
    caption: `Energy of the keys about their mean, of all KV heads together, in the best ${rank} of ${width} directions (dashed line) and in any other number. With RoPE undone the same directions hold ${gains.join(', ')}.`,
    svg: await drawChart('spectra', spectrumChart(spectra, rank)),
  };
}

async function errorFigure(schemes: readonly SchemeResult[]): Promise<Figure> {
  const shown = schemes.flatMap((each) => {
    const run = firstRun(each);
    return run === undefined ? [] : [{ scheme: `${each.scheme}, codes of ${run.backend}`, layers: run.layers }];
  });
  return {
    title: 'Error of the attention output',
    caption:
      'Against attention over the uncompressed activations, for the last 16 queries of every head: root of the squared error over the energy of the exact output. It shows what compression costs, and which of keys and values costs it.',
    svg: await drawChart('errors', errorChart(shown)),
  };
}

async function bytesFigure(schemes: readonly SchemeResult[], geometry: Geometry, tokens: number): Promise<Figure> {
  const half = geometry.width * tokens * 2;
  const compressed = partShares(geometry, tokens);
  const [largest] = [...compressed].sort((a, b) => b.bytes - a.bytes);
  const shares: ByteShare[] = [
    { cache: 'fp16', part: 'fp16 keys', bytes: half },
    { cache: 'fp16', part: 'fp16 values', bytes: half },
    ...compressed,
  ];
  const ratio = schemes[0]!.ratio.toFixed(2);
  return {
    title: 'Where the bytes are',
    caption: `One layer of ${tokens} tokens, as allocated. The whole is ${ratio} times smaller than fp16. Most of it is ${largest!.part}; what does not grow with the text (basis, codebook, exact tokens) weighs less the longer it is.`,
    svg: await drawChart('bytes', bytesChart(shares)),
  };
}

const parts: readonly (readonly [part: string, names: readonly string[]])[] = [
  ['exact tokens', ['sinkKeys', 'sinkValues', 'windowKeys', 'windowValues']],
  ['key codes', ['keyCodes']],
  ['key scales, basis, mean', ['keyScales', 'keyOffsets', 'keyBasis', 'keyBasisScales', 'keyMean']],
  ['value codes', ['valueCodes']],
  ['value scales, codebook', ['valueScales', 'valueOffsets', 'codebook', 'channelMax']],
];

/** Every byte of the plan under one of a few names. */
function partShares(geometry: Geometry, tokens: number): readonly ByteShare[] {
  const layout = layoutSequence(geometry, { tokens, generated: 0 });
  const cache = geometry.scheme.name;
  const named = parts.map(([part, names]) => ({
    cache,
    part,
    bytes: layout.parts.filter(({ name }) => names.includes(name)).reduce((sum, { bytes }) => sum + bytes, 0),
  }));
  const rest = layout.bytes + recordBytes - named.reduce((sum, { bytes }) => sum + bytes, 0);
  return [...named, { cache, part: 'record, padding', bytes: rest }];
}

function deviation(values: Float64Array): number {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length);
}

function rangeOf(...lists: readonly Float64Array[]): readonly [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return [low, high];
}
