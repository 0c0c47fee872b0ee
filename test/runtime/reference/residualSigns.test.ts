import { expect, test } from 'vitest';
import {
  emptyTensor,
  encodeResiduals,
  type HeadTensor,
  normalFrom,
  projected,
  residualOf,
  seededRandom,
  toHalf,
  vectorAt,
} from '../../../runtime/reference/index.js';

const d = 32;
const random = seededRandom(5);
const normals = (length: number) => Float64Array.from({ length }, () => normalFrom(random));
const projection = () => Array.from({ length: d }, () => (random() < 0.5 ? -1 : 1));
const dot = (a: Float64Array, b: Float64Array) => a.reduce((sum, x, i) => sum + x * b[i]!, 0);

test('a projection keeps products', () => {
  const [a, b, signs] = [normals(d), normals(d), projection()];
  expect(dot(projected(a, signs), projected(b, signs))).toBeCloseTo(dot(a, b), 12);
});

test('what signs and a length stand for has the product of the residual with any vector, in the mean over projections', () => {
  const residual = normals(d);
  const query = normals(d).map((x, i) => 0.6 * x + 0.8 * residual[i]!);
  const norm = Math.hypot(...residual);
  const draws = 20000;
  let [sum, squares] = [0, 0];
  for (let draw = 0; draw < draws; draw++) {
    const signs = projection();
    const sides = projected(residual, signs).map((x) => (x < 0 ? 0 : 1));
    const product = dot(residualOf(sides, norm, signs), query);
    sum += product;
    squares += product * product;
  }
  const mean = sum / draws;
  const deviation = Math.sqrt((squares / draws - mean * mean) / draws);
  // Signs of 32 channels are no rotation of all there are: the mean is off by a few hundredths of what is estimated.
  expect(Math.abs(mean - dot(residual, query))).toBeLessThan(5 * deviation + 0.03 * norm * Math.hypot(...query));
  // Without the factor, or with that of another dimension, it would be off by much more.
  expect(deviation).toBeLessThan(0.02 * norm * Math.hypot(...query));
});

test('the residual itself is found at its own length to a part that does not depend on it', () => {
  const residual = normals(d);
  const signs = projection();
  const sides = projected(residual, signs).map((x) => (x < 0 ? 0 : 1));
  const kept = residualOf(sides, Math.hypot(...residual), signs);
  // sqrt(pi / 2d) |r| sqrt(d), as the signs have the length sqrt(d).
  expect(Math.hypot(...kept)).toBeCloseTo(Math.sqrt(Math.PI / 2) * Math.hypot(...residual), 12);
  expect(dot(kept, residual)).toBeGreaterThan(0);
});

test('signs and lengths are of every token and head, nothing of a residual of zero', () => {
  const residuals: HeadTensor = { ...emptyTensor(2, 3, d), data: normals(2 * 3 * d) };
  vectorAt(residuals, 1, 2).fill(0);
  const own = projection();
  const { signs, norms } = encodeResiduals(residuals, own);
  for (let token = 0; token < 3; token++) {
    for (let head = 0; head < 2; head++) {
      const at = token * 2 + head;
      const residual = vectorAt(residuals, head, token);
      expect(norms[at]).toBe(toHalf(Math.hypot(...residual)));
      const wanted = [...projected(residual, own)].map((x) => (x < 0 ? 0 : 1));
      expect([...signs.subarray(at * d, (at + 1) * d)]).toEqual(wanted);
    }
  }
  expect([...residualOf(signs.subarray(5 * d), norms[5]!, own)].map(Math.abs)).toEqual(new Array(d).fill(0));
});
