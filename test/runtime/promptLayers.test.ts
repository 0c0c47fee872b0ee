import { describe, expect, test } from 'vitest';
import { presetModel } from '../../dsl/model.js';
import { layerTensors, promptLayers } from '../../runtime/promptLayers.js';
import { packSafetensors, parseSafetensors, type Tensor } from '../../runtime/safetensors.js';

const model = presetModel('smollm2-135m');
const { kvHeads, heads, headDim } = model;

const halves = (count: number, first: number) => Uint16Array.from({ length: count }, (_, i) => (first + i) & 0x3bff);

function tensor(shape: readonly number[], first = 0, dtype: 'F16' | 'BF16' = 'F16'): Tensor {
  const bits = halves(
    shape.reduce((product, size) => product * size, 1),
    first,
  );
  return { dtype, shape, bytes: new Uint8Array(bits.buffer) };
}

const layer = (index: number, tokens: number, first = 0): [string, Tensor][] => [
  [`layers.${index}.keys`, tensor([kvHeads, tokens, headDim], first)],
  [`layers.${index}.values`, tensor([kvHeads, tokens, headDim], first + 1)],
];

function faultOf(...tensors: readonly (readonly [string, Tensor])[]): string {
  try {
    promptLayers({ tensors: new Map(tensors) }, model);
    return 'none';
  } catch (error) {
    return (error as Error).message;
  }
}

test('layers come in order, whatever the order of their tensors, at any alignment', () => {
  const queries: [string, Tensor] = ['layers.2.queries', tensor([heads, 4, headDim], 7)];
  // A name of odd length before them moves the data.
  for (const source of ['', 'x']) {
    const file = packSafetensors(new Map([...layer(10, 3), queries, ...layer(2, 5, 100)]), { source });
    const shifted = new Uint8Array(file.length + 1);
    shifted.set(file, 1);
    const [first, second, ...more] = promptLayers(parseSafetensors(shifted.subarray(1)), model);
    expect(more).toEqual([]);
    expect([first!.layer, first!.tokens, second!.layer, second!.tokens]).toEqual([2, 5, 10, 3]);
    expect(first!.prompt()).toEqual({
      keys: halves(kvHeads * 5 * headDim, 100),
      values: halves(kvHeads * 5 * headDim, 101),
      tokens: 5,
      queries: halves(heads * 4 * headDim, 7),
    });
    expect(second!.prompt()).toEqual({
      keys: halves(kvHeads * 3 * headDim, 0),
      values: halves(kvHeads * 3 * headDim, 1),
      tokens: 3,
    });
  }
});

test('decoded tokens are read back as they were written', () => {
  const size = kvHeads * 6 * headDim;
  const decoded = { keys: halves(size, 3), values: halves(size, 9), tokens: 6 };
  const file = packSafetensors(layerTensors(29, decoded, model), {});
  const [read] = promptLayers(parseSafetensors(file), model);
  expect(read!.layer).toBe(29);
  expect(read!.prompt()).toEqual(decoded);
});

describe('a file is refused', () => {
  const [keys, values] = layer(0, 4) as [[string, Tensor], [string, Tensor]];

  test('without layers', () => {
    expect(faultOf()).toMatchInlineSnapshot(
      `"tensor layers.0.keys: expected the keys of a layer, got none. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });

  test('with a tensor of another name', () => {
    expect(faultOf(keys, values, ['layers.0.k', tensor([1])])).toMatchInlineSnapshot(
      `"tensor layers.0.k: expected layers.N.keys, layers.N.values or layers.N.queries, got another name. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
    expect(faultOf(['layers.00.keys', keys[1]], values)).toMatchInlineSnapshot(
      `"tensor layers.00.keys: expected layers.N.keys, layers.N.values or layers.N.queries, got another name. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });

  test('with a layer that the model has not', () => {
    expect(faultOf(...layer(29, 4))).toBe('none');
    expect(faultOf(...layer(30, 4))).toMatchInlineSnapshot(
      `"tensor layers.30: expected layers 0 to 29 of smollm2-135m, got 30. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });

  test('with keys alone', () => {
    expect(faultOf(keys)).toMatchInlineSnapshot(
      `"tensor layers.0.values: expected F16 [3 KV heads, 4, 64], got none. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });

  test('with values of other tokens', () => {
    expect(faultOf(keys, ['layers.0.values', tensor([kvHeads, 5, headDim])])).toMatchInlineSnapshot(
      `"tensor layers.0.values: expected F16 [3 KV heads, 4, 64], got F16 [3, 5, 64]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });

  test('with another type, number of heads or of dimensions', () => {
    expect(faultOf(['layers.0.keys', tensor([kvHeads, 4, headDim], 0, 'BF16')], values)).toMatchInlineSnapshot(
      `"tensor layers.0.keys: expected F16 [3 KV heads, tokens, 64], got BF16 [3, 4, 64]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
    expect(faultOf(['layers.0.keys', tensor([heads, 4, headDim])], values)).toMatchInlineSnapshot(
      `"tensor layers.0.keys: expected F16 [3 KV heads, tokens, 64], got F16 [9, 4, 64]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
    expect(faultOf(['layers.0.keys', tensor([1, kvHeads, 4, headDim])], values)).toMatchInlineSnapshot(
      `"tensor layers.0.keys: expected F16 [3 KV heads, tokens, 64], got F16 [1, 3, 4, 64]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
    expect(faultOf(keys, values, ['layers.0.queries', tensor([kvHeads, 4, headDim])])).toMatchInlineSnapshot(
      `"tensor layers.0.queries: expected F16 [9 heads, positions, 64], got F16 [3, 4, 64]. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
    );
  });
});
