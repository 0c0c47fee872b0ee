import fc from 'fast-check';
import { expect, test } from 'vitest';
import { geometryOf } from '../../../dsl/geometry.js';
import { layerShape } from '../../../dsl/model.js';
import type { TiltGeometry } from '../../../dsl/tiltGeometry.js';
import { packCalibration, parseCalibration } from '../../../runtime/calibrate/file.js';
import { fitTexts } from '../../../runtime/calibrate/fit.js';
import { spectrumOf } from '../../../runtime/calibrate/spectrum.js';
import { allocationError, emptyTensor, placeFields, widthsOf } from '../../../runtime/reference/index.js';
import { halfBits, halfValues, numbers } from '../../../runtime/verify/draws.js';
import { tiltCases } from '../../stages/tiltCases.js';

const { scheme, model } = tiltCases[0]!;
const g = geometryOf(scheme, model) as TiltGeometry;
const tensor = (heads: number, seed: number, tokens = 150) => {
  const data = halfValues(halfBits(numbers({ kind: 'normal', seed }, heads * tokens, g.headDim)));
  return { ...emptyTensor(heads, tokens, g.headDim), data };
};
const text = (seed: number) => ({ keys: tensor(g.kvHeads, seed), queries: tensor(g.heads, seed + 1, 8) });
const fit = fitTexts(g, layerShape(model, 0), [text(1)]);
const file = () => packCalibration(g, { layers: new Map([[0, fit]]), texts: [{ name: 'a', tokens: 150 }] });
const faultOf = async (bytes: Uint8Array, own = g) =>
  parseCalibration(bytes, own).then(String, (e: Error) => e.message);

test('a file gives back widths and weights, and bases to f16', async () => {
  const { layers, texts } = await parseCalibration(await file(), g);
  const read = layers.get(0)!;
  expect(texts).toEqual([{ name: 'a', tokens: 150 }]);
  expect(read.widths).toEqual(fit.widths);
  expect(read.weights).toEqual(fit.weights);
  for (const [head, { data }] of read.bases.entries()) {
    for (const [i, x] of data.entries()) expect(Math.abs(x - fit.bases[head]!.data[i]!)).toBeLessThanOrEqual(2 ** -12);
  }
});

test('any one byte that changes is refused', async () => {
  const whole = await file();
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 0, max: whole.length - 1 }),
      fc.integer({ min: 1, max: 255 }),
      async (at, by) => {
        const bytes = Uint8Array.from(whole);
        bytes[at]! ^= by;
        await expect(parseCalibration(bytes, g)).rejects.toMatchObject({ code: 'invalid-input' });
      },
    ),
    { numRuns: 60 },
  );
});

test('another model or other bits are refused by what differs', async () => {
  const other = { ...g, model: { ...model, heads: model.heads * 2 } };
  expect(await faultOf(await file(), other)).toMatch(/^calibration modelHash: expected [0-9a-f]{12}, got /);
  const more = { ...g, keyNibbles: g.keyNibbles + 1 };
  expect(await faultOf(await file(), more)).toMatch(/^calibration parameters: expected /);
});

test.each([
  [
    'a NaN',
    { weights: fit.weights.map((w, i) => (i === 3 ? Number.NaN : w)) },
    'weights[3]: expected an f16 number above 0, got NaN',
  ],
  ['a width of 7', { widths: fit.widths.with(0, 7) }, 'widths[0]: expected 0, 1, 2, 3, 4, 5, 6, 8, got 7'],
  ['too many bits', { widths: fit.widths.map(() => 8) }, 'widths: expected at most '],
])('%s in it is refused', async (_, wrong, message) => {
  const layers = new Map([[0, { ...fit, ...wrong }]]);
  const bytes = await packCalibration(g, { layers, texts: [{ name: 'a', tokens: 150 }] });
  expect(await faultOf(bytes)).toContain(`calibration layers.0.${message}`);
});

test('two texts alike are as good as one', () => {
  const twice = fitTexts(g, layerShape(model, 0), [text(1), text(1)]);
  expect(twice.widths).toEqual(fit.widths);
  for (const [head, values] of twice.variances.entries()) {
    for (const [r, variance] of values.entries()) expect(variance).toBeCloseTo(fit.variances[head]![r]!, 8);
  }
});

test('widths of two heads are those of least error of all that fit, by trying every one', () => {
  const widths = [0, 1, 2, 3, 4, 5, 6, 8];
  const descending = fc.array(fc.double({ min: 1e-6, max: 100, noNaN: true }), { minLength: 2, maxLength: 2 });
  fc.assert(
    fc.property(fc.tuple(descending, descending), fc.constantFrom(0.5, 1, 1.5, 2, 3), (drawn, bits) => {
      const variances = drawn.map((values) => Float64Array.from(values).sort().reverse());
      const each = variances.flatMap((values) => [...values]);
      const room = Math.ceil((bits * 4) / 4);
      let least = Number.POSITIVE_INFINITY;
      const all = widths.flatMap((a) => widths.map((b) => [a, b]));
      for (const first of all) {
        for (const second of all) {
          if (placeFields(first).nibbles + placeFields(second).nibbles > room) continue;
          least = Math.min(least, allocationError(each, [...first, ...second]));
        }
      }
      expect(allocationError(each, widthsOf(variances, 1, bits))).toBeCloseTo(least, 9);
    }),
    { numRuns: 40 },
  );
});

test('the spectrum counts components and the error that widths leave', () => {
  const drawn = { weights: new Float64Array(), bases: [], variances: [Float64Array.of(90, 8, 1, 1)], widths: [1, 0] };
  const { heads, error } = spectrumOf(drawn, 2);
  expect(heads).toEqual([{ most: 1, nearly: 3, widths: [1, 0] }]);
  // One bit leaves 1 - 2 / pi of a Gaussian's variance.
  expect(error).toBeCloseTo((98 * (1 - 2 / Math.PI) + 2) / 100, 3);
});
