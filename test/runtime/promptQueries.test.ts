import { expect, test } from 'vitest';
import { geometryOf } from '../../dsl/geometry.js';
import { presetModel, shardPlus, tiltFast } from '../../dsl/index.js';
import { checkPrompt } from '../../runtime/cache/checkPrompt.js';

const g = geometryOf(shardPlus, presetModel('smollm2-135m'));
const tokens = 3;
const keys = new Uint16Array(g.kvHeads * tokens * g.headDim);

function given(queries: Uint16Array | undefined): number | string {
  try {
    const prompt = { keys, values: keys, tokens, ...(queries ? { queries } : {}) };
    return checkPrompt(g, prompt, { tokens: 10, layer: 0 });
  } catch (error) {
    return (error as Error).message;
  }
}

test('the queries of a prompt are of its last positions, at most all', () => {
  const position = g.heads * g.headDim;
  expect(given(new Uint16Array(position))).toBe(1);
  expect(given(new Uint16Array(3 * position))).toBe(3);
  expect(given(new Uint16Array(4 * position))).toMatchInlineSnapshot(
    `"queries, layer 0: expected queries of at most 3 positions, the tokens of the prompt, got 4. Pass the queries of the last positions of the prompt."`,
  );
  expect(given(undefined)).toMatchInlineSnapshot(
    `"queries: expected queries of the prompt's last positions, as shard-plus weighs by them, got nothing. Pass f16 bits [heads][positions][head dim], after RoPE; 32 positions are enough."`,
  );
  expect(given(new Uint16Array(0))).toMatchInlineSnapshot(
    `"queries: expected queries of the prompt's last positions, as shard-plus weighs by them, got an empty array. Pass f16 bits [heads][positions][head dim], after RoPE; 32 positions are enough."`,
  );
  expect(given(new Uint16Array(position + 1))).toMatchInlineSnapshot(
    `"queries, layer 0: expected 576 f16 numbers (9 heads x 1 query tokens x 64 channels) as a Uint16Array, got 577. Pass the bits of the f16 tensor, innermost dimension last."`,
  );
  expect(given(new Uint16Array(position).fill(0x7c00))).toMatchInlineSnapshot(
    `"queries, layer 0, head 0, query token 0, channel 0: expected a finite f16 number, got Infinity. Find where the model overflows; nothing was written to the cache."`,
  );
});

test.each([{ queries: null }, { fit: undefined }])(
  'tile-rotated keys without queries name the other way: %o',
  (change) => {
    const prompt = { keys, values: keys, tokens, ...change } as unknown as Parameters<typeof checkPrompt>[1];
    const check = () => checkPrompt(geometryOf(tiltFast, g.model), prompt, { tokens: 10, layer: 0 });
    expect(check).toThrow(
      "queries: expected queries of the prompt's last positions, as tilt-fast weighs by them, got nothing. Pass f16 bits [heads][positions][head dim], after RoPE, or a layer of a calibration as fit.",
    );
  },
);
