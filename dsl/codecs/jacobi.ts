import { abs, type f32, sqrt, vec2f } from '../device.js';

/**
 * Cosine and sine of the rotation that zeroes the off-diagonal entry of a symmetric 2 x 2 matrix
 * [[app, apq], [apq, aqq]], the smaller of the two angles (Golub and Van Loan, section 8.5.2).
 */
export function jacobiRotation(app: f32, aqq: f32, apq: f32): vec2f {
  'device';
  let cosine: f32 = 1;
  let sine: f32 = 0;
  if (abs(apq) > 1e-37) {
    const tau = (aqq - app) / (2 * apq);
    // Past 1e9 the square of tau would round away the one beneath the root, and could overflow.
    let tangent: f32 = 0;
    if (abs(tau) < 1e9) {
      tangent = (tau < 0 ? -1 : 1) / (abs(tau) + sqrt(1 + tau * tau));
    }
    cosine = 1 / sqrt(1 + tangent * tangent);
    sine = tangent * cosine;
  }
  return vec2f(cosine, sine);
}
