import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { frequenciesFor, layerShape, type ModelShape, modelFrom, type RopeShape } from '../../dsl/model.js';
import { architectures, supportedModelTypes } from '../../dsl/models/architectures.js';

/** What scripts/ropeAngles.py recorded of one model. */
interface Recorded {
  readonly config: { readonly model_type: string };
  readonly ropes: readonly RecordedRope[];
  readonly small: {
    readonly config: object;
    readonly scale: number;
    readonly cap: number | null;
    readonly layers: readonly RecordedLayer[];
  };
}

interface RecordedRope {
  readonly layer_type: 'full_attention' | 'sliding_attention' | null;
  /** Tokens of the sequence. */
  readonly length: number;
  readonly attention_scaling: number;
  /** [rotaryDim/2], float32 in the library, and from the same code in float64. */
  readonly inv_freq: readonly number[];
  readonly inv_freq64: readonly number[];
  readonly at: readonly number[];
  readonly pairs: readonly number[];
  /** [at][pairs] */
  readonly cos: readonly (readonly number[])[];
  readonly sin: readonly (readonly number[])[];
}

interface RecordedLayer {
  /** Of 6 keys, those that the last query sees. */
  readonly visible: number;
  readonly rotates: boolean;
  /** [2][16]: the same key at positions 0 and 7; of the first layer of each kind. */
  readonly keys?: readonly [readonly number[], readonly number[]];
}

const fixture = packagePath('test', 'fixtures', 'rope', 'angles.json');
const { models } = JSON.parse(readFileSync(fixture, 'utf8')) as { models: Record<string, Recorded> };
const names = Object.keys(models);

/** The RoPE of the layers of a type that rotate. */
function ropeOf(model: ModelShape, type: RecordedRope['layer_type']): RopeShape {
  const kinds = model.kinds.filter(({ rope, slidingWindow }) => {
    const own = slidingWindow === undefined ? 'full_attention' : 'sliding_attention';
    return rope.type !== 'none' && (type === null || type === own);
  });
  return kinds[0]!.rope;
}

function largestRatio(actual: readonly number[], expected: readonly number[]): number {
  expect(actual).toHaveLength(expected.length);
  return Math.max(...actual.map((value, index) => Math.abs(value / expected[index]! - 1)));
}

/** Rotates one head in float64, by the definition of RopeShape. */
function rotated(key: readonly number[], position: number, rope: RopeShape, frequencies: readonly number[]): number[] {
  const turned = [...key];
  frequencies.forEach((frequency, j) => {
    const [a, b] = rope.pairing === 'half' ? [j, j + rope.rotaryDim / 2] : [2 * j, 2 * j + 1];
    const cos = Math.cos(position * frequency);
    const sin = Math.sin(position * frequency);
    turned[a] = key[a]! * cos - key[b]! * sin;
    turned[b] = key[b]! * cos + key[a]! * sin;
  });
  return turned;
}

test('a model of every supported type was recorded, but for latents, whose rotary parts no kernel turns', () => {
  const types = supportedModelTypes.filter((type) => !architectures[type].latent);
  expect(new Set(Object.values(models).map(({ config }) => config.model_type))).toEqual(new Set(types));
});

describe.each(names)('%s, as transformers computes it', (name) => {
  const { config, ropes, small } = models[name]!;
  const model = modelFrom(config);

  test.each(ropes)('the angles of a sequence of $length tokens, $layer_type', (recorded) => {
    const rope = ropeOf(model, recorded.layer_type);
    const frequencies = frequenciesFor(rope, recorded.length);
    expect(largestRatio(frequencies, recorded.inv_freq)).toBeLessThan(1e-6);
    // Eleven digits are recorded.
    expect(largestRatio(frequencies, recorded.inv_freq64)).toBeLessThan(1e-10);
    expect(rope.attentionFactor).toBeCloseTo(recorded.attention_scaling, 12);
    recorded.at.forEach((position, row) => {
      recorded.pairs.forEach((pair, column) => {
        const angle = position * frequencies[pair]!;
        const factor = rope.attentionFactor;
        expect(Math.abs(factor * Math.cos(angle) - recorded.cos[row]![column]!)).toBeLessThan(1e-6);
        expect(Math.abs(factor * Math.sin(angle) - recorded.sin[row]![column]!)).toBeLessThan(1e-6);
      });
    });
  });

  test('the scores, windows and rotations of every layer', () => {
    const shape = modelFrom(small.config);
    expect(shape.scoreScale).toBeCloseTo(small.scale, 14);
    expect(shape.scoreCap ?? null).toBe(small.cap);
    expect(shape.layerKinds).toHaveLength(small.layers.length);
    small.layers.forEach(({ visible, rotates, keys }, layer) => {
      const { rope, slidingWindow } = layerShape(shape, layer);
      expect(Math.min(slidingWindow ?? 6, 6)).toBe(visible);
      expect(rope.type !== 'none').toBe(rotates);
      if (!keys) return;
      const expected = rotated(keys[0], 7, rope, frequenciesFor(rope, 8));
      const scale = Math.max(...keys[0].map(Math.abs));
      const error = Math.max(...expected.map((value, channel) => Math.abs(value - keys[1][channel]!)));
      expect(error / scale).toBeLessThan(1e-6);
    });
  });
});
