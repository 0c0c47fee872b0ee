import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import {
  emptyTensor,
  type HeadTensor,
  type ScalarCoding,
  type ScalarOptions,
  type ScalarRule,
} from '../../runtime/reference/index.js';
import { codingOf } from '../../runtime/reference/unpackScalar.js';
import { codecValues } from '../../runtime/verify/codeValues.js';
import { halfValues } from '../../runtime/verify/draws.js';

const rules: Readonly<Record<string, Pick<ScalarRule, 'offset' | 'scale'>>> = {
  nuq: { offset: 'middle', scale: 'covering' },
  lloydMax: { offset: 'none', scale: 'norm' },
  symmetric: { offset: 'none', scale: 'largest' },
  asymmetric: { offset: 'least', scale: 'largest' },
  midRise: { offset: 'least', scale: 'largest' },
};

/** The codes of keys, or values, in the terms of the reference. */
function scalarCoding(groups: ScalarGroups): ScalarCoding {
  const { codec, levelChannels, trim, outlierCap: cap, range, projection } = groups;
  // The lowest code of symmetric steps is none that a number gets.
  const stands = [...codecValues(codec, levelChannels)];
  const levels = codec.name === 'symmetric' ? stands.with(0, Number.NEGATIVE_INFINITY) : stands;
  return {
    ...codingOf(groups),
    rule: { ...rules[codec.name]!, levels, trim },
    ...(cap > 0 ? { outliers: { cap, range } } : {}),
    ...(projection.length > 0 ? { projection } : {}),
  };
}

/** How a scheme codes a prompt, in the terms of the reference. */
export function codingOfScheme({ keys, values, scheme }: ScalarGeometry): ScalarOptions {
  const { sinks, window } = scheme;
  return { keys: scalarCoding(keys), values: scalarCoding(values), sinks, window };
}

/** f16 bits [KV heads][tokens][head dim]. */
export function tensorOf(g: ScalarGeometry, bits: Uint16Array): HeadTensor {
  return { ...emptyTensor(g.kvHeads, bits.length / g.width, g.headDim), data: halfValues(bits) };
}
