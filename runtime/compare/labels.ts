/** A point of a chart, in pixels from its left upper corner. */
export interface LabelledPoint {
  readonly x: number;
  readonly y: number;
  readonly text: string;
}

export interface LabelPlace {
  readonly align: 'left' | 'right' | 'center';
  /** Of the text's middle from the point. */
  readonly dx: number;
  readonly dy: number;
}

/** In the order in which they are tried. */
export const labelPlaces: readonly LabelPlace[] = [
  { align: 'left', dx: 8, dy: 0 },
  { align: 'left', dx: 6, dy: -11 },
  { align: 'left', dx: 6, dy: 11 },
  { align: 'right', dx: -8, dy: 0 },
  { align: 'right', dx: -6, dy: -11 },
  { align: 'right', dx: -6, dy: 11 },
  { align: 'center', dx: 0, dy: -20 },
  { align: 'center', dx: 0, dy: 20 },
];

/** In pixels. */
export interface Box {
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

/** Of a letter and a line of 11 pixels, a little more than the usual sans-serif takes. */
const [letterWidth, lineHeight, pointRadius, lineWidth] = [6.4, 12, 5, 2];

/** The boxes of a line of steps, as `step-after` draws it through points from left to right. */
export function stepBoxes(points: readonly Pick<LabelledPoint, 'x' | 'y'>[]): readonly Box[] {
  return points.slice(1).flatMap((to, index): Box[] => {
    const from = points[index]!;
    const [top, bottom] = [Math.min(from.y, to.y), Math.max(from.y, to.y)];
    return [
      { left: from.x, right: to.x, top: from.y - lineWidth, bottom: from.y + lineWidth },
      { left: to.x - lineWidth, right: to.x + lineWidth, top, bottom },
    ];
  });
}

/**
 * Where the label of each point goes, so that it lies on no point, on no label before it and on nothing else that is in
 * the way, as far as there is such a place among `labelPlaces`; the first of them where there is none.
 *
 * @param width of the chart, which labels do not leave
 * @returns for each point an index of `labelPlaces`
 */
export function placeLabels(
  points: readonly LabelledPoint[],
  width: number,
  others: readonly Box[] = [],
): readonly number[] {
  // Points come first: a point is not in the way of its own label.
  const taken: Box[] = [...points.map(({ x, y }) => around(x, y, pointRadius, pointRadius)), ...others];
  return points.map((point, own) => {
    const boxes = labelPlaces.map((place) => boxOf(point, place));
    const free = boxes.findIndex(
      (box) =>
        box.left >= 0 && box.right <= width && !taken.some((other, index) => index !== own && overlap(box, other)),
    );
    const chosen = Math.max(free, 0);
    taken.push(boxes[chosen]!);
    return chosen;
  });
}

function boxOf({ x, y, text }: LabelledPoint, { align, dx, dy }: LabelPlace): Box {
  const length = text.length * letterWidth;
  const shift = align === 'left' ? length / 2 : align === 'right' ? -length / 2 : 0;
  return around(x + dx + shift, y + dy, length / 2, lineHeight / 2);
}

function around(x: number, y: number, halfWidth: number, halfHeight: number): Box {
  return { left: x - halfWidth, right: x + halfWidth, top: y - halfHeight, bottom: y + halfHeight };
}

function overlap(a: Box, b: Box): boolean {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}
