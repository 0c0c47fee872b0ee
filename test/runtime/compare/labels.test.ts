import { describe, expect, test } from 'vitest';
import { labelPlaces, placeLabels, stepBoxes } from '../../../runtime/compare/labels.js';

describe('labels of a chart', () => {
  test('lie on the right of points that are far apart', () => {
    const points = [
      { x: 10, y: 10, text: 'one' },
      { x: 10, y: 100, text: 'two' },
    ];
    expect(placeLabels(points, 300)).toEqual([0, 0]);
  });

  test('stay within the chart', () => {
    const [place] = placeLabels([{ x: 290, y: 50, text: 'a long name' }], 300);
    expect(labelPlaces[place!]!.align).toBe('right');
  });

  test('of neighbours do not lie on each other', () => {
    const points = [
      { x: 50, y: 50, text: 'first' },
      { x: 52, y: 52, text: 'second' },
    ];
    const [first, second] = placeLabels(points, 300);
    expect(first).not.toBe(second);
  });

  test('do not lie on a line of steps, which runs level to the next point and then down to it', () => {
    const line = [
      { x: 50, y: 50, text: 'from' },
      { x: 200, y: 90, text: 'to' },
    ];
    expect(stepBoxes(line)).toEqual([
      { left: 50, right: 200, top: 48, bottom: 52 },
      { left: 198, right: 202, top: 50, bottom: 90 },
    ]);
    expect(placeLabels(line, 300, stepBoxes(line)).map((place) => labelPlaces[place])).toEqual([
      { align: 'left', dx: 6, dy: -11 },
      { align: 'left', dx: 8, dy: 0 },
    ]);
  });

  test('have the first place where none is free', () => {
    const points = Array.from({ length: 40 }, () => ({ x: 150, y: 50, text: 'crowd' }));
    expect(placeLabels(points, 300).at(-1)).toBe(0);
  });
});
