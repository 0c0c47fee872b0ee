import { expect, test } from 'vitest';
import { geometryOf } from '../../../dsl/geometry.js';
import { readBack } from '../../../runtime/mix/readBack.js';
import { decodeScalar, emptyTensor, encodeScalar, vectorAt } from '../../../runtime/reference/index.js';
import { numbers } from '../../../runtime/verify/draws.js';
import { signedCases } from '../../stages/signedCases.js';
import { codingOfScheme } from '../outlierCoding.js';

test.each(signedCases)('what is read back with the signs of what codes leave is what float64 decodes: $name', (one) => {
  const { model, scheme } = one;
  const g = geometryOf(scheme, model);
  const tokens = scheme.sinks + 30 + scheme.window;
  const drawn = (seed: number) => ({
    ...emptyTensor(g.kvHeads, tokens, g.headDim),
    data: numbers({ kind: 'normal', seed }, g.kvHeads * tokens, g.headDim),
  });
  const exact = { keys: drawn(1), values: drawn(2) };
  const wanted = decodeScalar(encodeScalar(exact, model, codingOfScheme(g)));
  const read = readBack(g.keys, exact.keys, { first: scheme.sinks, tokens: 30 }, model.rope);
  let worst = 0;
  for (let head = 0; head < g.kvHeads; head++) {
    for (let token = scheme.sinks; token < scheme.sinks + 30; token++) {
      const known = vectorAt(wanted.keys, head, token);
      vectorAt(read, head, token).forEach((x, i) => {
        worst = Math.max(worst, Math.abs(x - known[i]!));
      });
    }
  }
  // Levels are float32 where kernels read them; a length in float16 may be rounded to its other neighbour.
  expect(worst).toBeLessThan(1e-3);
});
