import { color } from '../report/svg.js';
import { labelPlaces, placeLabels, stepBoxes } from './labels.js';

export interface SchemePoint {
  readonly scheme: string;
  readonly bytesPerToken: number;
  /** Of the attention outputs, in percent. */
  readonly percent: number;
  readonly front: boolean;
}

const [width, height] = [640, 400];

/**
 * Bytes against error, both axes logarithmic, with the front as a line of steps: nothing compared lies below it. The
 * axis of errors is linear where one of them is 0.
 */
export function frontChart(points: readonly SchemePoint[], shape: string): object {
  const horizontal = axisOf(points.map(({ bytesPerToken }) => bytesPerToken));
  const vertical = axisOf(points.map(({ percent }) => percent));
  const x = {
    field: 'bytesPerToken',
    type: 'quantitative',
    title: `bytes a token and layer, ${shape}`,
    scale: horizontal.scale,
    axis: { grid: false, tickCount: 6, format: '~r' },
  };
  const y = {
    field: 'percent',
    type: 'quantitative',
    title: 'attention error, %',
    scale: vertical.scale,
    axis: { tickCount: 6, format: '~r' },
  };
  const drawnAt = ({ scheme, bytesPerToken, percent }: SchemePoint) => ({
    x: horizontal.part(bytesPerToken) * width,
    y: (1 - vertical.part(percent)) * height,
    text: scheme,
  });
  const front = points.filter((point) => point.front).sort((a, b) => a.bytesPerToken - b.bytesPerToken);
  const places = placeLabels(points.map(drawnAt), width, stepBoxes(front.map(drawnAt)));
  const labels = labelPlaces.map((place, index) => ({
    data: { values: points.filter((_, point) => places[point] === index) },
    mark: { type: 'text', ...place, baseline: 'middle', fontSize: 11 },
    encoding: { x, y, text: { field: 'scheme', type: 'nominal' } },
  }));
  return {
    width,
    height,
    layer: [
      {
        data: { values: front },
        mark: { type: 'line', interpolate: 'step-after', strokeDash: [4, 3], color: color('one') },
        encoding: { x, y },
      },
      {
        data: { values: points },
        mark: { type: 'point', filled: true, size: 60, opacity: 1 },
        encoding: { x, y, color: { condition: { test: 'datum.front', value: color('one') }, value: color('muted') } },
      },
      ...labels.filter(({ data }) => data.values.length > 0),
    ],
  };
}

/** A scale with room on both sides of the values, and where a value lies on it, from 0 to 1. */
function axisOf(values: readonly number[]) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const type = least > 0 ? 'log' : 'linear';
  const room = 1.15;
  const domain = type === 'log' ? [least / room, most * room] : [0, most === 0 ? 1 : most * room];
  const on = type === 'log' ? Math.log : (value: number) => value;
  const [low, high] = [on(domain[0]!), on(domain[1]!)];
  return { scale: { type, nice: false, domain }, part: (value: number) => (on(value) - low) / (high - low) };
}
