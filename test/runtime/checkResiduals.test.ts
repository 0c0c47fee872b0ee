import { describe, expect, test } from 'vitest';
import { layoutSequence, type PartName, splitPrompt } from '../../codegen/plan/layout.js';
import { geometryOf } from '../../dsl/geometry.js';
import {
  emptyTensor,
  encodeScalar,
  inForm,
  projected,
  type ScalarParts,
  vectorAt,
} from '../../runtime/reference/index.js';
import { codedVector } from '../../runtime/reference/scalar.js';
import { sliceTokens } from '../../runtime/reference/segmentsEncode.js';
import { unpackShare } from '../../runtime/reference/unpackShare.js';
import { checkScalar } from '../../runtime/verify/checkScalar.js';
import { codeValues } from '../../runtime/verify/codeValues.js';
import { halfBits, halfValues, type Kind, kinds, numbers } from '../../runtime/verify/draws.js';
import { Judge } from '../../runtime/verify/judge.js';
import { packParts } from '../../runtime/verify/packParts.js';
import { type SignedCase, signedCases } from '../stages/signedCases.js';
import { codingOfScheme } from './outlierCoding.js';

const tokens = 40;

/** A prompt as float64 encodes it, its bytes, and what the judge says of others. */
function encoded({ scheme, model }: SignedCase, kind: Kind) {
  const g = geometryOf(scheme, model);
  const drawn = (seed: number) => {
    const bits = halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim));
    return { ...emptyTensor(g.kvHeads, tokens, g.headDim), data: halfValues(bits) };
  };
  const prompt = { keys: drawn(1), values: drawn(2) };
  const parts: ScalarParts = encodeScalar(prompt, model, codingOfScheme(g));
  const layout = layoutSequence(g, { tokens, generated: 0 });
  const share = new Uint8Array(layout.bytes);
  packParts(g, layout, { ...parts, windowStart: 0 }, share);
  const { sinks, middle, window } = splitPrompt(g, tokens);
  const lengths = {
    ...{ sinkTokens: sinks, middleTokens: middle, streamTokens: 0 },
    ...{ windowTokens: window, windowStart: 0, promptTokens: tokens },
  };
  const failures = (bytes: Uint8Array) => {
    const judge = new Judge();
    const held = unpackShare(g, layout, bytes, lengths, codeValues(g));
    checkScalar(g, { parts: held, layout, share: bytes }, prompt, judge);
    return judge.failures.map(({ what }) => what);
  };
  const at = (name: PartName) => layout.parts.find((part) => part.name === name)!.offset;
  return { g, parts, prompt, share, failures, at };
}

describe.each(signedCases)('signs and lengths of $name', (one) => {
  test.each(kinds)('pass as float64 encodes them, of numbers of the kind "%s"', (kind) => {
    const { share, failures } = encoded(one, kind);
    expect(failures(share)).toEqual([]);
  });

  const { g, parts, prompt, share, failures, at } = encoded(one, 'normal');
  const changed = (byte: number, change: (byte: number) => number) => {
    const broken = share.slice();
    broken[byte] = change(broken[byte]!);
    return failures(broken);
  };

  test('fail with the wrong sign of a projection that is not nearly zero', () => {
    const { keys, firstPosition } = parts.middle;
    const exact = inForm(
      sliceTokens(prompt.keys, firstPosition, parts.middle.tokens),
      'turned',
      firstPosition,
      parts.rope,
    );
    for (const [head, token] of [
      [0, 0],
      [1, 7],
    ] as const) {
      const place = { token, head, heads: g.kvHeads, channels: g.headDim };
      const stands = codedVector(keys, place);
      const left = vectorAt(exact, head, token).map((x, i) => x - stands[i]!);
      const sizes = projected(left, g.keys.projection).map(Math.abs);
      const channel = sizes.indexOf(Math.max(...sizes));
      const bit = (token * g.kvHeads + head) * g.headDim + channel;
      const found = changed(at('residualSigns') + Math.floor(bit / 8), (byte) => byte ^ (1 << (bit % 8)));
      expect(found).toEqual([
        `keys: sign of a projection of what the codes leave: KV head ${head}, middle token ${token}, channel ${channel}`,
      ]);
    }
  });

  test('fail with a length one step of float16 off', () => {
    const found = changed(at('residualNorms') + 2, (byte) => byte ^ 1);
    expect(found).toEqual(["keys: length of what the codes leave, in float32's error: KV head 1, middle token 0"]);
  });
});
