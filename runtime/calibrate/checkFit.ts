import { KvforgeError } from '../../dsl/errors.js';
import type { TiltGeometry } from '../../dsl/tiltGeometry.js';
import type { TiltFit } from '../reference/tiltEncode.js';
import { placeFields } from '../reference/tiltPlaces.js';

const widths = [0, 1, 2, 3, 4, 5, 6, 8];

/** @throws KvforgeError `invalid-input` for a fit that keys of this geometry cannot be coded by */
export function checkFit(g: TiltGeometry, fit: TiltFit, at: string): void {
  const { kvHeads, headDim: d, headGroups } = g;
  const hint = 'Calibrate for this scheme and model.';
  const sizes = [
    ['weights', fit.weights.length, kvHeads * d],
    ['bases', fit.bases.length, kvHeads],
    ['widths', fit.widths.length, kvHeads * headGroups],
  ] as const;
  for (const [name, received, expected] of sizes) {
    if (received !== expected) throw refused(`${at}.${name}`, `${expected} of them`, String(received), hint);
  }
  const bad = fit.weights.findIndex((weight) => !(weight > 0 && weight <= 65504));
  if (bad >= 0) throw refused(`${at}.weights[${bad}]`, 'a number above 0', String(fit.weights[bad]), hint);
  for (const [head, { data }] of fit.bases.entries()) {
    const entry = data.length === d * d ? data.findIndex((x) => !(Math.abs(x) <= 1.01)) : data.length;
    if (entry >= 0)
      throw refused(`${at}.bases, head ${head}`, `${d} x ${d} numbers from -1 to 1`, `${data[entry]}`, hint);
  }
  const wrong = fit.widths.findIndex((width) => !widths.includes(width));
  if (wrong >= 0) throw refused(`${at}.widths[${wrong}]`, widths.join(', '), String(fit.widths[wrong]), hint);
  const nibbles = fit.bases.reduce(
    (sum, _, head) => sum + placeFields(fit.widths.slice(head * headGroups, (head + 1) * headGroups)).nibbles,
    0,
  );
  if (nibbles > g.keyNibbles) throw refused(`${at}.widths`, `at most ${g.keyNibbles} nibbles`, String(nibbles), hint);
}

export function refused(at: string, expected: string, received: string, hint: string): KvforgeError {
  return new KvforgeError('invalid-input', { at: `calibration ${at}`, expected, received, hint });
}
