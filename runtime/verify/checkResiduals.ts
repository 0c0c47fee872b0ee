import { type Cache, type HeadTensor, projected, type ScalarCodes, vectorAt } from '../reference/index.js';
import { codedVector } from '../reference/scalar.js';
import { clampToHalf, halfRounding, type Judge, Worst } from './judge.js';

/** Of sums and products with the offset and the scale, and of a transform of eight rounds at most, over the length of a vector. */
const rounding = 2e-6;

/**
 * Holds the signs and lengths of what the codes of a prompt leave to the numbers and to the codes that were stored. A
 * projection so near to zero that float32 does not know its sign may have either.
 */
export function checkResiduals(
  coded: ScalarCodes,
  name: keyof Cache,
  { numbers, slack }: Record<'numbers' | 'slack', HeadTensor>,
  judge: Judge,
): void {
  const { projection, signs, norms } = coded.residuals!;
  const { heads, tokens, channels: d } = numbers;
  const worst = { sign: new Worst(), norm: new Worst() };
  for (let token = 0; token < tokens; token++) {
    for (let head = 0; head < heads; head++) {
      const x = vectorAt(numbers, head, token);
      const stands = codedVector(coded, { token, head, heads, channels: d });
      const residual = x.map((number, i) => number - stands[i]!);
      const lost = Math.hypot(...vectorAt(slack, head, token)) + rounding * (Math.hypot(...x) + Math.hypot(...stands));
      const at = token * heads + head;
      const length = clampToHalf(Math.hypot(...residual));
      const place = `KV head ${head}, middle token ${token}`;
      worst.norm.add((Math.abs(norms[at]! - length) - halfRounding(length)) / (lost || 1), () => place);
      projected(residual, projection).forEach((y, channel) => {
        const sign = signs[at * d + channel] === 1 ? 1 : -1;
        worst.sign.add(-sign * y - lost, () => `${place}, channel ${channel}`);
      });
    }
  }
  judge.check(`${name}: length of what the codes leave, in float32's error: ${worst.norm.at}`, worst.norm.error, 1);
  judge.check(`${name}: sign of a projection of what the codes leave: ${worst.sign.at}`, worst.sign.error, 0);
}
