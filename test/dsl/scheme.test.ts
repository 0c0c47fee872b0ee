import { describe, expect, it } from 'vitest';
import {
  channelMax,
  defineScheme,
  hadamard,
  KvforgeError,
  lloydMax,
  pca,
  shard,
  shardPlus,
  unrope,
  vq,
} from '../../dsl/index.js';
import type { Scheme } from '../../dsl/scheme.js';

/** The whole message that a descriptor is refused with. */
function refusal(change: object): string {
  try {
    defineScheme({ ...shard, ...change } as Scheme);
  } catch (error) {
    expect(error).toBeInstanceOf(KvforgeError);
    expect((error as KvforgeError).code).toBe('invalid-scheme');
    return (error as KvforgeError).message;
  }
  return 'accepted';
}

const keysWith = (params: object) => ({
  keys: [unrope(), { ...pca({ rank: 'auto', bits: 4, group: 64 }), ...params }],
});
const valuesWith = (params: object) => ({
  values: [hadamard(), channelMax(), { ...vq({ channels: 4, entries: 256 }), ...params }],
});

describe('defineScheme', () => {
  it('accepts the presets unchanged', () => {
    expect(refusal({})).toBe('accepted');
    expect(refusal(shardPlus)).toBe('accepted');
  });

  it('names the path, what was expected, what came and what to do', () => {
    expect(refusal({ name: '../etc' })).toMatchInlineSnapshot(
      `"name: expected lower-case letters, digits and hyphens, at most 40, got "../etc". The name becomes part of file names."`,
    );
    expect(refusal({ name: 'a\nb' })).toMatchInlineSnapshot(
      `"name: expected lower-case letters, digits and hyphens, at most 40, got "a\\nb". The name becomes part of file names."`,
    );
    expect(refusal({ sinks: -1 })).toMatchInlineSnapshot(
      `"sinks: expected a whole number from 0 to 64, got -1. Shard keeps 4."`,
    );
    expect(refusal({ sinks: Number.NaN })).toMatchInlineSnapshot(
      `"sinks: expected a whole number from 0 to 64, got NaN. Shard keeps 4."`,
    );
    expect(refusal({ window: 0 })).toMatchInlineSnapshot(
      `"window: expected a whole number from 1 to 1024, got 0. Shard keeps 64."`,
    );
    expect(refusal({ keys: [pca({ rank: 'auto', bits: 4, group: 64 }), unrope()] })).toMatchInlineSnapshot(
      `"keys: expected codecs of kind rotary, low-rank, got ["low-rank","rotary"]. Write unrope(), pca({...})."`,
    );
    expect(refusal({ keys: undefined })).toMatchInlineSnapshot(
      `"keys: expected codecs of kind rotary, low-rank, got undefined. Write unrope(), pca({...})."`,
    );
    expect(refusal({ values: [hadamard()] })).toMatchInlineSnapshot(
      `"values: expected codecs of kind transform, normalize, vector-quantizer, got ["transform"]. Write hadamard(), channelMax(), vq({...})."`,
    );
    expect(refusal({ stream: undefined })).toMatchInlineSnapshot(
      `"stream: expected codecs of kind scalar, got [null]. Write lloydMax({ bits: 8 })."`,
    );
    expect(refusal(keysWith({ rank: 100 }))).toMatchInlineSnapshot(
      `"keys[1].rank: expected a multiple of 16 from 16 on, or 'auto', got 100. Tensor cores take components 16 at a time."`,
    );
    expect(refusal(keysWith({ rank: Infinity }))).toMatchInlineSnapshot(
      `"keys[1].rank: expected a multiple of 16 from 16 on, or 'auto', got Infinity. Tensor cores take components 16 at a time."`,
    );
    expect(refusal(keysWith({ group: 48 }))).toMatchInlineSnapshot(
      `"keys[1].group: expected 16, 32, 64 or 128, got 48. Shard uses 64."`,
    );
    expect(refusal(keysWith({ bits: 5 }))).toMatchInlineSnapshot(
      `"keys[1].bits: expected 0, 2, 4, 6 or 8, got 5. Codes are packed at these widths."`,
    );
    expect(refusal(keysWith({ bits: [4, 5, 4] }))).toMatchInlineSnapshot(
      `"keys[1].bits[1]: expected 0, 2, 4, 6 or 8, got 5. Codes are packed at these widths."`,
    );
    expect(refusal(keysWith({ bits: [] }))).toMatchInlineSnapshot(
      `"keys[1].bits: expected a width, a list of widths or { budget }, got []. Write bits: 4."`,
    );
    expect(refusal(keysWith({ bits: [0, 0] }))).toMatchInlineSnapshot(
      `"keys[1].bits: expected at least one width above 0, got [0,0]. Write bits: 4."`,
    );
    expect(refusal(keysWith({ rank: 192, bits: [4, 4] }))).toMatchInlineSnapshot(
      `"keys[1].bits: expected 3 widths (rank 192 in groups of 64), got [4,4]. Give one width a group."`,
    );
    expect(refusal(keysWith({ iterations: 0 }))).toMatchInlineSnapshot(
      `"keys[1].iterations: expected a whole number from 1 to 1000, got 0. Leave it out for the published value."`,
    );
    expect(refusal(keysWith({ seed: -1 }))).toMatchInlineSnapshot(
      `"keys[1].seed: expected a whole number from 0 to 4294967295, got -1. Leave it out for 1."`,
    );
    expect(refusal(valuesWith({ channels: 3 }))).toMatchInlineSnapshot(
      `"values[2].channels: expected 2, 4 or 8, got 3. Shard uses 4."`,
    );
    expect(refusal(valuesWith({ entries: 512 }))).toMatchInlineSnapshot(
      `"values[2].entries: expected 16, 32, 64, 128 or 256 (what a u8 index can name), got 512. Shard uses 256."`,
    );
    expect(refusal({ stream: { ...lloydMax({ bits: 8 }), bits: 5 } })).toMatchInlineSnapshot(
      `"stream.bits: expected 2, 3, 4 or 8, got 5. Shard ships 8."`,
    );
    expect(refusal({ stream: { ...lloydMax({ bits: 8 }), levels: undefined } })).toMatchInlineSnapshot(
      `"stream.levels: expected a function of the head dimension, got undefined. Build the codec with defineCodec."`,
    );
    expect(refusal({ stream: { ...lloydMax({ bits: 8 }), device: { scale: Math.max } } })).toMatchInlineSnapshot(
      `"stream.device.code: expected a function marked 'device', got undefined. Build the codec with defineCodec."`,
    );
  });

  it('refuses budgets that fill no words, groups that no allocation knows, and flags of another kind', () => {
    const allocated = (params: object) => keysWith({ bits: { budget: 'auto' }, group: 16, ...params });
    expect(refusal(allocated({}))).toBe('accepted');
    expect(refusal(allocated({ bits: { budget: 96 } }))).toBe('accepted');
    expect(refusal(allocated({ bits: { budget: 100 } }))).toMatchInlineSnapshot(
      `"keys[1].bits.budget: expected a multiple of 32 from 32 to 8192, or 'auto', got 100. A row is whole words."`,
    );
    expect(refusal(allocated({ bits: { budget: 0 } }))).toMatchInlineSnapshot(
      `"keys[1].bits.budget: expected a multiple of 32 from 32 to 8192, or 'auto', got 0. A row is whole words."`,
    );
    expect(refusal(allocated({ bits: { budget: Number.NaN } }))).toMatchInlineSnapshot(
      `"keys[1].bits.budget: expected a multiple of 32 from 32 to 8192, or 'auto', got NaN. A row is whole words."`,
    );
    expect(refusal(allocated({ bits: { budget: '96' } }))).toMatchInlineSnapshot(
      `"keys[1].bits.budget: expected a multiple of 32 from 32 to 8192, or 'auto', got "96". A row is whole words."`,
    );
    expect(refusal(allocated({ group: 32 }))).toMatchInlineSnapshot(
      `"keys[1].group: expected 16, as bits are allocated, got 32. A group is what a tensor core takes at a time."`,
    );
    expect(refusal(keysWith({ bits: {} }))).toMatchInlineSnapshot(
      `"keys[1].bits: expected a width, a list of widths or { budget }, got {}. Write bits: 4."`,
    );
    expect(refusal(keysWith({ weight: 'keys' }))).toMatchInlineSnapshot(
      `"keys[1].weight: expected 'none' or 'queries', got "keys". Leave it out for 'none'."`,
    );
    expect(refusal(valuesWith({ unbiased: 1 }))).toMatchInlineSnapshot(
      `"values[2].unbiased: expected true or false, got 1. Leave it out for false."`,
    );
  });

  it('refuses names that are no identifiers, and indices of another size', () => {
    const name = 'a\n__global__ void b() {}';
    const expected = 'a letter, then letters, digits, hyphens and underscores, at most 40';
    const rest = `: expected ${expected}, got ${JSON.stringify(name)}. The name is printed in generated text.`;
    expect(refusal({ stream: { ...lloydMax({ bits: 8 }), name } })).toBe(`stream.name${rest}`);
    expect(refusal(keysWith({ name }))).toBe(`keys[1].name${rest}`);
    expect(refusal({ keys: [{ ...unrope(), name }, shard.keys[1]] })).toBe(`keys[0].name${rest}`);
    expect(refusal(valuesWith({ name }))).toBe(`values[2].name${rest}`);
    expect(refusal(valuesWith({ index: 'u16' }))).toBe(
      `values[2].index: expected 'u8', got "u16". Leave it to vq({...}): an index is one byte.`,
    );
  });
});
