import { describe, expect, test } from 'vitest';
import { geometryOf } from '../../../dsl/geometry.js';
import type { TiltGeometry } from '../../../dsl/tiltGeometry.js';
import { checkFit } from '../../../runtime/calibrate/checkFit.js';
import { parseCalibration } from '../../../runtime/calibrate/file.js';
import { fitParts } from '../../../runtime/calibrate/parts.js';
import type { TiltFit } from '../../../runtime/reference/tiltEncode.js';
import { halfValues } from '../../../runtime/verify/draws.js';
import { tiltCases } from '../../stages/tiltCases.js';

/** Two heads of 32 channels, channel i rotated with channel i + 16. */
const g = geometryOf(tiltCases[0]!.scheme, tiltCases[0]!.model) as TiltGeometry;
const identity = () => {
  const data = new Float64Array(32 * 32);
  for (let i = 0; i < 32; i++) data[i * 33] = 1;
  return { rows: 32, columns: 32, data };
};
const fit: TiltFit = {
  weights: new Float64Array(64).fill(1),
  bases: [identity(), identity()],
  variances: [new Float64Array(32), new Float64Array(32)],
  widths: [4, 0, 0, 0, 4, 0, 0, 0],
};

function faultOf(given: unknown, own = g): string {
  try {
    checkFit(own, given as TiltFit, 'fit');
    return 'accepted';
  } catch (error) {
    return (error as Error).message;
  }
}

const calibrate = 'Calibrate for this scheme and model.';

describe('a fit', () => {
  test('of the right sizes is taken', () => expect(faultOf(fit)).toBe('accepted'));

  test.each([
    [null, 'null'],
    ['tilt.calibration', '"tilt.calibration"'],
  ])('that is none is refused: %s', (given, received) => {
    expect(faultOf(given)).toBe(
      `calibration fit: expected { weights, bases, variances, widths }, got ${received}. Pass what layers.get(layer) of a calibration gives.`,
    );
  });

  test.each([
    [{ weights: undefined }, 'weights: expected 64 of them, got none'],
    [{ bases: [identity(), null] }, 'bases, head 1: expected 32 x 32 numbers from -1 to 1, got none of them'],
    [
      { bases: [{ ...identity(), data: new Float64Array(31) }, identity()] },
      'bases, head 0: expected 32 x 32 numbers from -1 to 1, got 31 of them',
    ],
    [{ weights: fit.weights.with(3, 1e-9) }, 'weights[3]: expected an f16 number above 0, got 1e-9'],
    [{ weights: fit.weights.with(48 + 5, 0.5) }, 'weights[53]: expected 1, as of channel 5 of its pair, got 0.5'],
  ])('that keys cannot be coded by is refused: %o', (change, message) => {
    expect(faultOf({ ...fit, ...change })).toBe(`calibration fit.${message}. ${calibrate}`);
  });

  test('has one weight for two channels that are not rotated, too: the encoder reads that of the first', () => {
    const partial = geometryOf(tiltCases[4]!.scheme, tiltCases[4]!.model) as TiltGeometry;
    const bases = [0, 1].map(() => ({ rows: 64, columns: 64, data: new Float64Array(64 * 64) }));
    const own = { ...fit, bases, weights: new Float64Array(128).fill(1), widths: new Array(16).fill(0) };
    expect(faultOf(own, partial)).toBe('accepted');
    // Channels 0 to 31 are rotated, i with i + 16; of the others, i goes with i + 16 as well.
    expect(faultOf({ ...own, weights: own.weights.with(50, 0.5) }, partial)).toBe(
      `calibration fit.weights[50]: expected 1, as of channel 34 of its pair, got 0.5. ${calibrate}`,
    );
  });

  test('weights keys by what decoding divides by', () => {
    const { weights, share } = fitParts(g, { ...fit, weights: new Float64Array(64).fill(0.3) });
    const stored = share.find(([name]) => name === 'keyWeights')![1];
    expect([...weights]).toEqual([...halfValues(new Uint16Array(stored.buffer))]);
  });
});

test('a path, or a file that was not awaited, is no calibration', async () => {
  const faultOfFile = (file: unknown) => parseCalibration(file as Uint8Array, g).catch((e: Error) => e.message);
  const expected = 'calibration file: expected bytes, a Uint8Array, got';
  const hint = 'Pass what await readFile(path) gives.';
  expect(await faultOfFile('tilt.calibration')).toBe(`${expected} "tilt.calibration". ${hint}`);
  expect(await faultOfFile(Promise.resolve())).toBe(`${expected} a promise, which was not awaited. ${hint}`);
});
