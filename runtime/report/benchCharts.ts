import { type ColorRole, color } from './svg.js';

const width = 620;
const roles: readonly ColorRole[] = ['one', 'two', 'three', 'four', 'five', 'six'];

const hueOf = (series: readonly string[]) => ({
  field: 'series',
  type: 'nominal',
  sort: null,
  scale: { domain: series, range: series.map((_, index) => color(roles[index % roles.length]!)) },
});

export interface RooflinePoint {
  readonly series: string;
  readonly shape: string;
  /** Operations for a byte that is read. */
  readonly intensity: number;
  /** In a second, in units of 1e12. */
  readonly teraoperations: number;
}

/** What a device allows at each intensity, and where runs lie below it; both axes logarithmic. */
export function rooflineChart(
  points: readonly RooflinePoint[],
  ceiling: { readonly bytesPerSecond: number; readonly operations: number | null },
): object {
  const intensities = points.map(({ intensity }) => intensity);
  const ridge = ceiling.operations === null ? Infinity : ceiling.operations / ceiling.bytesPerSecond;
  const from = Math.min(...intensities) / 2;
  const to = Math.max(...intensities) * 2;
  const allowed = (intensity: number) =>
    Math.min(intensity * ceiling.bytesPerSecond, ceiling.operations ?? Infinity) / 1e12;
  const roof = [from, ...(ridge > from && ridge < to ? [ridge] : []), to].map((intensity) => ({
    intensity,
    teraoperations: allowed(intensity),
  }));
  const x = {
    field: 'intensity',
    type: 'quantitative',
    title: 'operations for a byte read',
    scale: { type: 'log', nice: false, domain: [from, to] },
    axis: { tickCount: 5, grid: false },
  };
  const y = {
    field: 'teraoperations',
    type: 'quantitative',
    title: 'operations a second, 1e12',
    scale: { type: 'log' },
    axis: { tickCount: 4, grid: false },
  };
  const series = [...new Set(points.map((point) => point.series))];
  return {
    width: width - 40,
    height: 280,
    layer: [
      {
        data: { values: roof },
        mark: { type: 'line', strokeWidth: 2, color: color('muted') },
        encoding: { x, y },
      },
      {
        data: { values: points },
        // Shapes of a scheme have nearly the same intensity: texts would lie upon each other.
        mark: { type: 'point', filled: true, size: 70, opacity: 0.85 },
        encoding: {
          x,
          y,
          color: hueOf(series),
          shape: { field: 'shape', type: 'nominal', sort: null, legend: { orient: 'bottom', columns: 6 } },
        },
      },
    ],
  };
}

export interface RatioBar {
  readonly series: string;
  readonly shape: string;
  readonly ratio: number;
}

/** Times faster than a baseline, which is the line at 1. */
export function ratioChart(bars: readonly RatioBar[]): object {
  const series = [...new Set(bars.map((bar) => bar.series))];
  const x = {
    field: 'shape',
    type: 'nominal',
    title: null,
    sort: null,
    axis: { labelAngle: 0, labelColor: color('ink'), labelFontSize: 12 },
  };
  const y = { field: 'ratio', type: 'quantitative', title: 'times as fast', axis: { tickCount: 5 } };
  const xOffset = { field: 'series', type: 'nominal', sort: null };
  return {
    width: width - 40,
    height: 220,
    data: { values: bars },
    layer: [
      { mark: { type: 'bar', cornerRadiusEnd: 2 }, encoding: { x, y, xOffset, color: hueOf(series) } },
      {
        mark: { type: 'text', dy: -7, fontSize: 11 },
        encoding: { x, y, xOffset, text: { field: 'ratio', format: '.2f' } },
      },
      { mark: { type: 'rule', strokeDash: [4, 3], color: color('ink') }, encoding: { y: { datum: 1 } } },
    ],
  };
}

export interface HistoryPoint {
  readonly series: string;
  /** Since the search began. */
  readonly seconds: number;
  /** The best found until then. */
  readonly us: number;
}

/** How a search for tunables got on. */
export function historyChart(points: readonly HistoryPoint[]): object {
  const series = [...new Set(points.map((point) => point.series))];
  return {
    width: width - 40,
    height: 220,
    data: { values: points },
    mark: { type: 'line', interpolate: 'step-after', point: { filled: true, size: 30 }, strokeWidth: 2 },
    encoding: {
      x: { field: 'seconds', type: 'quantitative', title: 'seconds of the search', axis: { tickCount: 6 } },
      y: {
        field: 'us',
        type: 'quantitative',
        title: 'best so far, us',
        scale: { zero: false },
        axis: { tickCount: 5 },
      },
      color: hueOf(series),
    },
  };
}
