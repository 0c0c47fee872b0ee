import { join } from 'node:path';
import { getFloat16 } from '@petamoriken/float16';
import { describe, expect, test } from 'vitest';
import { modelFrom } from '../../../dsl/model.js';
import { loadActivations } from '../../../runtime/report/activations.js';
import type { Tensor } from '../../../runtime/safetensors.js';
import { temporaryFolder } from '../../cli/support.js';
import { halfTensor, tinyConfig, tinyLayer, writeActivations } from '../compare/activationsFile.js';

const model = modelFrom(tinyConfig, 'tiny');
const fileOf = (tensors: readonly (readonly [string, Tensor])[], metadata?: Readonly<Record<string, string>>) =>
  writeActivations(join(temporaryFolder(), 'a.safetensors'), tensors, metadata);
const faultOf = async (path: string, layer = 1) => {
  try {
    (await loadActivations(path, model)).layer(layer);
    return 'none';
  } catch (error) {
    return (error as Error).message.replace(path, 'FILE');
  }
};
const hint = 'docs/compare.md says what a file of activations holds.';

describe('activations of a file', () => {
  test('are those of its layers, in order, with queries turned to their positions', async () => {
    const read = await loadActivations(fileOf([...tinyLayer(3, 20, 2), ...tinyLayer(1, 10, 1)]), model);
    expect(read.model).toBe(model);
    expect([read.layers, read.description]).toEqual([[1, 3], 'a tiny model']);
    const { tokens, visible, queries } = read.layer(3);
    expect([tokens, visible]).toEqual([20, [19, 20]]);
    // RoPE in the rotate-half form, written out: channel j of 16 pairs at position 19, with frequency 10000^(-j/16).
    const plain = new DataView(halfTensor([4, 2, 32], 12).bytes.buffer);
    const at = (channel: number) => getFloat16(plain, ((3 * 2 + 1) * 32 + channel) * 2, true);
    for (const j of [0, 5, 15]) {
      const angle = 19 * 10000 ** (-j / 16);
      const [a, b] = [at(j), at(j + 16)];
      expect(queries.data[(3 * 2 + 1) * 32 + j]).toBeCloseTo(a * Math.cos(angle) - b * Math.sin(angle), 12);
      expect(queries.data[(3 * 2 + 1) * 32 + j + 16]).toBeCloseTo(b * Math.cos(angle) + a * Math.sin(angle), 12);
    }
  });

  test('need no configuration where the model is given', async () => {
    const read = await loadActivations(fileOf(tinyLayer(1, 10, 1), {}), model);
    expect([read.layers, read.description]).toEqual([[1], 'tiny']);
  });

  test('of another model are refused', async () => {
    const config = (change: object) => ({ config: JSON.stringify({ ...tinyConfig, ...change }) });
    const other = 'FILE: expected activations of tiny, got those of a model with';
    expect(await faultOf(fileOf(tinyLayer(1, 10, 1), config({ num_hidden_layers: 5 })))).toBe(
      `${other} layers 5 instead of 4. ${hint}`,
    );
    expect(await faultOf(fileOf(tinyLayer(1, 10, 1), config({ rope_theta: 500 })))).toBe(
      `${other} other kinds. ${hint}`,
    );
  });

  test.each<[string, readonly (readonly [string, Tensor])[], string]>([
    ['no layers', [['x', halfTensor([1], 1)]], 'FILE: expected a tensor layers.N.k for each layer N, got none'],
    ['no queries', tinyLayer(1, 10, 1).slice(0, 2), 'layers.1.q: expected F16 [4, tokens, 32], got none'],
    [
      'keys of other heads',
      [['layers.1.k', halfTensor([3, 10, 32], 1)]],
      'layers.1.k: expected F16 [2, tokens, 32], got F16 [3, 10, 32]',
    ],
    [
      'no tokens',
      [['layers.1.k', halfTensor([2, 0, 32], 1)]],
      'layers.1.k: expected F16 [2, tokens, 32], got F16 [2, 0, 32]',
    ],
    [
      'values of fewer tokens than keys',
      [tinyLayer(1, 10, 1)[0]!, tinyLayer(1, 9, 1)[1]!],
      'layers.1.v: expected F16 [2, 10, 32], got F16 [2, 9, 32]',
    ],
    [
      'more queries than tokens',
      tinyLayer(1, 10, 11),
      'layers.1.q: expected queries of at most 10 positions, the tokens of the layer, got 11',
    ],
  ])('with %s are refused', async (_, tensors, message) => {
    expect(await faultOf(fileOf(tensors))).toBe(`${message}. ${hint}`);
  });

  test('with a configuration that is no JSON are refused', async () => {
    expect(await faultOf(fileOf(tinyLayer(1, 10, 1), { config: '{' }))).toMatch(
      /^FILE, metadata, config: expected JSON, got .*\. docs\/compare\.md says what a file of activations holds\.$/,
    );
  });

  test('of a layer that the model does not have are refused', async () => {
    expect(await faultOf(fileOf(tinyLayer(4, 10, 1)), 4)).toBe(
      'layer: expected a whole number from 0 to 3, got 4. tiny has 4 layers.',
    );
  });

  test('that are not there are refused', async () => {
    expect(await faultOf('/no/such/file')).toBe(`FILE: expected recorded activations, got no such file. ${hint}`);
    expect(await faultOf('/')).toBe(`FILE: expected recorded activations, got EISDIR. ${hint}`);
  });

  test('that come with kvforge are not there when it is damaged', async () => {
    await expect(loadActivations('/no/such/file')).rejects.toThrow(
      '/no/such/file: expected recorded activations, got no such file. Install kvforge again; the recorded activations are part of the package.',
    );
  });
});
