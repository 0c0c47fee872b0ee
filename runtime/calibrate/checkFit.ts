import { KvforgeError } from '../../dsl/errors.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import { shown } from '../cache/checkInput.js';
import { largestHalf, toHalf } from '../reference/quantize.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { placeFields } from '../reference/tiltPlaces.js';
import { channelPairs } from '../reference/weights.js';

const widths = [0, 1, 2, 3, 4, 5, 6, 8];

/** @throws KvforgeError `invalid-input` for a fit that keys of this geometry cannot be coded by */
export function checkFit(g: TiltGeometry, fit: TiltFit, at: string): void {
  const { kvHeads, headDim: d, headGroups } = g;
  const hint = 'Calibrate for this scheme and model.';
  if (typeof fit !== 'object' || fit === null) {
    const expected = '{ weights, bases, variances, widths }';
    throw refused(at, expected, shown(fit), 'Pass what layers.get(layer) of a calibration gives.');
  }
  const sizes = [
    ['weights', fit.weights, kvHeads * d],
    ['bases', fit.bases, kvHeads],
    ['widths', fit.widths, kvHeads * headGroups],
  ] as const;
  for (const [name, list, expected] of sizes) {
    const received = list?.length ?? 'none';
    if (received !== expected) throw refused(`${at}.${name}`, `${expected} of them`, String(received), hint);
  }
  checkWeights(g, fit.weights, at, hint);
  for (const [head, basis] of fit.bases.entries()) {
    const refuse = (received: string): never => {
      throw refused(`${at}.bases, head ${head}`, `${d} x ${d} numbers from -1 to 1`, received, hint);
    };
    if (basis?.data?.length !== d * d) refuse(`${basis?.data?.length ?? 'none'} of them`);
    const entry = basis.data.findIndex((x) => !(Math.abs(x) <= 1.01));
    if (entry >= 0) refuse(String(basis.data[entry]));
  }
  const wrong = fit.widths.findIndex((width) => !widths.includes(width));
  if (wrong >= 0) throw refused(`${at}.widths[${wrong}]`, widths.join(', '), String(fit.widths[wrong]), hint);
  const nibbles = fit.bases.reduce(
    (sum, _, head) => sum + placeFields(fit.widths.slice(head * headGroups, (head + 1) * headGroups)).nibbles,
    0,
  );
  if (nibbles > g.keyNibbles) throw refused(`${at}.widths`, `at most ${g.keyNibbles} nibbles`, String(nibbles), hint);
}

/**
 * Decoding divides by what float16 leaves of a weight. Both channels of a pair need the same: only so does it commute with
 * rotations, and the encoder reads that of the first alone.
 */
function checkWeights({ model, headDim: d }: TiltGeometry, weights: Float64Array, at: string, hint: string): void {
  const bad = weights.findIndex((weight) => !(toHalf(weight) > 0 && weight <= largestHalf));
  if (bad >= 0) throw refused(`${at}.weights[${bad}]`, 'an f16 number above 0', String(weights[bad]), hint);
  for (let first = 0; first < weights.length; first += d) {
    for (const [a, b] of channelPairs(model.rope, d)) {
      const [one, other] = [weights[first + a]!, weights[first + b]!];
      if (toHalf(one) === toHalf(other)) continue;
      throw refused(`${at}.weights[${first + b}]`, `${one}, as of channel ${a} of its pair`, String(other), hint);
    }
  }
}

export function refused(at: string, expected: string, received: string, hint: string): KvforgeError {
  return new KvforgeError('invalid-input', { at: `calibration ${at}`, expected, received, hint });
}
