import type { LayerResult } from './measure.js';
import type { Bin } from './statistics.js';
import { type ColorRole, color } from './svg.js';

const width = 620;

/** The first two are of what a scheme is compared with. */
const stackRoles: readonly ColorRole[] = ['muted', 'pale', 'one', 'two', 'three', 'four', 'five', 'six'];

const scaleOf = (domain: readonly string[], roles: readonly ColorRole[]) => ({
  domain,
  range: roles.map(color),
});

export interface NamedHistogram {
  readonly facet: string;
  readonly series: string;
  readonly bins: readonly Bin[];
}

/** Histograms drawn over each other, a facet side by side. */
export function histogramChart(histograms: readonly NamedHistogram[], axisTitle: string): object {
  const series = [...new Set(histograms.map((each) => each.series))];
  const facets = [...new Set(histograms.map((each) => each.facet))];
  const values = histograms.flatMap(({ facet, series: name, bins }) =>
    bins.map(({ from, to, share }) => ({ facet, series: name, from, to, percent: share * 100 })),
  );
  return {
    data: { values },
    facet: { column: { field: 'facet', type: 'nominal', sort: facets } },
    spacing: 18,
    spec: {
      width: Math.floor((width - 18 * (facets.length - 1)) / facets.length),
      height: 170,
      mark: { type: 'rect', opacity: 0.62 },
      encoding: {
        x: {
          field: 'from',
          type: 'quantitative',
          title: axisTitle,
          axis: { grid: false, tickCount: 5 },
          scale: { nice: false },
        },
        x2: { field: 'to' },
        y: { field: 'percent', type: 'quantitative', title: '% of tokens', axis: { tickCount: 4 } },
        y2: { datum: 0 },
        color: { field: 'series', type: 'nominal', scale: scaleOf(series, ['two', 'one']) },
      },
    },
    resolve: { scale: { x: 'independent', y: 'independent' } },
  };
}

export interface Spectrum {
  readonly layer: number;
  readonly series: string;
  readonly energy: readonly number[];
}

/** Cumulative energy by the number of directions kept. */
export function spectrumChart(spectra: readonly Spectrum[], rank: number): object {
  const series = [...new Set(spectra.map((each) => each.series))];
  const values = spectra.flatMap(({ layer, series: name, energy }) =>
    energy.map((part, index) => ({ layer: `layer ${layer}`, series: name, kept: index + 1, percent: part * 100 })),
  );
  const at = spectra.map(({ layer, series: name, energy }) => ({
    layer: `layer ${layer}`,
    series: name,
    kept: rank,
    percent: energy[rank - 1]! * 100,
  }));
  const x = {
    field: 'kept',
    type: 'quantitative',
    title: 'directions kept',
    axis: { grid: false, tickCount: 5 },
    scale: { nice: false },
  };
  const y = {
    field: 'percent',
    type: 'quantitative',
    title: '% of energy',
    scale: { domain: [0, 100] },
    axis: { tickCount: 5 },
  };
  const hue = { field: 'series', type: 'nominal', scale: scaleOf(series, ['two', 'one']) };
  const layers = [...new Set(spectra.map(({ layer }) => `layer ${layer}`))];
  return {
    data: { values: [...values, ...at.map((each) => ({ ...each, mark: 'kept' }))] },
    facet: { column: { field: 'layer', type: 'nominal', sort: layers } },
    spacing: 18,
    spec: {
      width: Math.floor((width - 18 * (layers.length - 1)) / layers.length),
      height: 190,
      layer: [
        {
          mark: { type: 'rule', strokeDash: [3, 3], color: color('muted') },
          transform: [{ filter: `datum.mark && datum.series === ${JSON.stringify(series[0])}` }],
          encoding: { x: { datum: rank } },
        },
        {
          mark: { type: 'line', strokeWidth: 2 },
          transform: [{ filter: '!datum.mark' }],
          encoding: { x, y, color: hue },
        },
        {
          mark: { type: 'point', filled: true, size: 45, opacity: 1 },
          transform: [{ filter: 'datum.mark' }],
          encoding: { x, y, color: hue },
        },
        // The upper line's number stands above it, the lower line's below.
        ...series.map((name, index) => ({
          mark:
            index === 0
              ? { type: 'text', align: 'left', dx: 7, dy: 9 }
              : { type: 'text', align: 'right', dx: -6, dy: -7 },
          transform: [{ filter: `datum.mark && datum.series === ${JSON.stringify(name)}` }],
          encoding: { x, y, text: { field: 'percent', format: '.0f' }, color: hue },
        })),
      ],
    },
  };
}

/** What compression costs the attention output, by layer. */
export function errorChart(
  schemes: readonly { readonly scheme: string; readonly layers: readonly LayerResult[] }[],
): object {
  const parts = ['keys alone', 'values alone', 'both'];
  const values = schemes.flatMap(({ scheme, layers }) =>
    layers.flatMap(({ layer, keysOnlyError, valuesOnlyError, attentionError }) =>
      [keysOnlyError, valuesOnlyError, attentionError].map((error, index) => ({
        scheme,
        layer: `layer ${layer}`,
        part: parts[index],
        percent: error * 100,
      })),
    ),
  );
  const x = {
    field: 'layer',
    type: 'nominal',
    title: null,
    sort: null,
    axis: { labelAngle: 0, labelColor: color('ink'), labelFontSize: 12 },
  };
  const y = { field: 'percent', type: 'quantitative', title: 'error, %', axis: { tickCount: 5 } };
  const xOffset = { field: 'part', type: 'nominal', sort: parts };
  const bars = {
    width: Math.floor(width / schemes.length) - 20,
    height: 200,
    layer: [
      {
        mark: { type: 'bar', cornerRadiusEnd: 2 },
        encoding: {
          x,
          y,
          xOffset,
          color: { field: 'part', type: 'nominal', sort: parts, scale: scaleOf(parts, ['three', 'two', 'one']) },
        },
      },
      {
        mark: { type: 'text', dy: -7, fontSize: 11 },
        encoding: { x, y, xOffset, text: { field: 'percent', format: '.1f' } },
      },
    ],
  };
  // A facet of one leaves an empty band below it.
  if (schemes.length === 1) return { data: { values }, ...bars };
  return { data: { values }, facet: { column: { field: 'scheme', type: 'nominal', sort: null } }, spec: bars };
}

export interface ByteShare {
  readonly cache: string;
  readonly part: string;
  readonly bytes: number;
}

/** Bytes of one layer and sequence, stacked. */
export function bytesChart(shares: readonly ByteShare[]): object {
  const parts = [...new Set(shares.map(({ part }) => part))];
  const caches = [...new Set(shares.map(({ cache }) => cache))];
  const totals = caches.map((cache) => ({
    cache,
    total: shares.filter((each) => each.cache === cache).reduce((sum, { bytes }) => sum + bytes / 1024, 0),
  }));
  const y = {
    field: 'cache',
    type: 'nominal',
    title: null,
    sort: caches,
    axis: { labelColor: color('ink'), labelFontSize: 12, labelPadding: 8, ticks: false, domain: false },
  };
  return {
    width: width - 60,
    height: 44 * caches.length,
    layer: [
      {
        data: { values: shares.map((each, order) => ({ ...each, kb: each.bytes / 1024, order })) },
        mark: { type: 'bar', height: 26, stroke: color('card'), strokeWidth: 1 },
        encoding: {
          y,
          x: { field: 'kb', type: 'quantitative', title: 'KiB', stack: 'zero', axis: { tickCount: 6 } },
          order: { field: 'order' },
          color: {
            field: 'part',
            type: 'nominal',
            scale: scaleOf(parts, stackRoles.slice(0, parts.length)),
            legend: { columns: 4 },
          },
        },
      },
      {
        data: { values: totals },
        mark: { type: 'text', align: 'left', dx: 6 },
        encoding: { y, x: { field: 'total', type: 'quantitative' }, text: { field: 'total', format: ',.0f' } },
      },
    ],
  };
}
