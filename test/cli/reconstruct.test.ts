import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { reconstruct } from '../../cli/reconstruct.js';
import { modelFrom } from '../../dsl/model.js';
import { layerTensors } from '../../runtime/promptLayers.js';
import { packSafetensors, parseSafetensors, type Tensor, tensorValues } from '../../runtime/safetensors.js';
import { halves } from '../runtime/cacheCase.js';
import { cli, documentOf, errorOf, quietContext, spawned, temporaryFolder } from './support.js';

const config = {
  model_type: 'llama',
  hidden_size: 64,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  max_position_embeddings: 512,
  rope_theta: 10000,
};
const model = modelFrom(config, 'narrow');
const [tokens, sinks, window] = [150, 4, 64];

/** A folder with a model and a file of two layers, of which both schemes read what they need. */
function folderWith(tensors = prompt()): {
  readonly options: Parameters<typeof reconstruct>[2];
  readonly input: string;
} {
  const folder = temporaryFolder();
  const [input, output] = [join(folder, 'prompt.safetensors'), join(folder, 'out.safetensors')];
  writeFileSync(join(folder, 'narrow.json'), JSON.stringify(config));
  writeFileSync(input, packSafetensors(tensors, {}));
  return { options: { model: join(folder, 'narrow.json'), device: 'emulator', input, output }, input };
}

function prompt(): ReadonlyMap<string, Tensor> {
  const size = model.width * tokens;
  const layers = [1, 3].flatMap((layer) => {
    const data = { keys: halves(size, layer), values: halves(size, 10 + layer), tokens };
    const queries = new Uint8Array(halves(model.heads * 8 * model.headDim, 20 + layer).buffer);
    const shape = [model.heads, 8, model.headDim];
    return [
      ...layerTensors(layer, data, model),
      [`layers.${layer}.queries`, { dtype: 'F16', shape, bytes: queries }] as const,
    ];
  });
  return new Map(layers);
}

test.each(['shard', 'shard-plus'])('%s keeps sinks and window, and gives the middle back nearly', async (scheme) => {
  const { options, input } = folderWith();
  const lines: string[] = [];
  const { json, text } = await reconstruct(quietContext(lines), scheme, options);
  const plan = documentOf(await cli('inspect', scheme, '--model', options.model, '--tokens', `${tokens}`, '--json'));
  const each = { tokens, bytes: plan.totalBytes, fp16Bytes: tokens * model.width * 4, ms: expect.any(Number) };
  expect(json).toMatchObject({
    scheme,
    layers: [
      { layer: 1, ...each },
      { layer: 3, ...each },
    ],
    bytes: 2 * (plan.totalBytes as number),
    fp16Bytes: 2 * tokens * model.width * 4,
    output: options.output,
  });
  expect(text).toMatch(new RegExp(`^${scheme} on narrow: 2 layers, [\\d,]+ bytes; fp16 38,400; [\\d.]+ m?s\\n$`));
  expect(lines[0]).toContain(`reconstructing 2 layers by ${scheme}: CPU emulator of CUDA`);

  const given = parseSafetensors(readFileSync(input)).tensors;
  const { tensors, metadata } = parseSafetensors(readFileSync(options.output));
  expect([...metadata]).toContainEqual(['scheme', scheme]);
  expect([...tensors.keys()].sort()).toEqual(
    [1, 3].flatMap((layer) => [`layers.${layer}.keys`, `layers.${layer}.values`]),
  );
  for (const [name, tensor] of tensors) {
    const [exact, read] = [tensorValues(given.get(name)!), tensorValues(tensor)];
    let [squares, errors] = [0, 0];
    for (const [index, value] of read.entries()) {
      const token = Math.floor(index / model.headDim) % tokens;
      if (token < sinks || token >= tokens - window) expect(value).toBe(exact[index]);
      else {
        squares += exact[index]! ** 2;
        errors += (value - exact[index]!) ** 2;
      }
    }
    // Numbers without any structure are what low rank and codebooks are worst at; zeros would have an error of 1.
    expect(errors).toBeGreaterThan(0);
    expect(errors / squares).toBeLessThan(0.6);
  }
});

test('a scheme that weighs by queries says when there are none', async () => {
  const tensors = new Map([...prompt()].filter(([name]) => !name.endsWith('queries')));
  const { options } = folderWith(tensors);
  await expect(reconstruct(quietContext(), 'shard-plus', options)).rejects.toThrow(
    "queries: expected queries of the prompt's last positions, as shard-plus weighs by them, got nothing. Pass f16 bits",
  );
});

test('a scheme for every layer gives what each of them gives by itself', async () => {
  const { options } = folderWith();
  const mix = join(temporaryFolder(), 'mix.ts');
  writeFileSync(mix, "export { int8 as layer1, int4 as layer3 } from 'kvforge';\n");
  const read = async (scheme: string) => {
    const run = await cliWith(options, scheme);
    expect(run.code, run.err).toBe(0);
    return { document: documentOf(run), tensors: parseSafetensors(readFileSync(options.output)).tensors };
  };
  const [both, first, second] = [await read(`${mix}#layer*`), await read('int8'), await read('int4')];
  const layersOf = ({ document }: typeof both) => document.layers as readonly { layer: number; bytes: number }[];
  expect(both.document).toMatchObject({
    scheme: `${mix}#layer*`,
    layers: [layersOf(first)[0]!, layersOf(second)[1]!].map(({ layer, bytes }) => ({ layer, bytes })),
  });
  for (const [{ tensors }, layer] of [[first, 1] as const, [second, 3] as const]) {
    for (const operand of ['keys', 'values']) {
      const name = `layers.${layer}.${operand}`;
      expect(Buffer.compare(both.tensors.get(name)!.bytes, tensors.get(name)!.bytes)).toBe(0);
    }
  }
});

test('a layer without a scheme is named', async () => {
  const { options } = folderWith();
  const mix = join(temporaryFolder(), 'mix.ts');
  writeFileSync(mix, `export { int8 as layer1 } from 'kvforge';\n`);
  expect(errorOf(await cliWith(options, `${mix}#layer*`))).toEqual({
    code: 'invalid-scheme',
    message: `${mix}: expected a scheme exported as layer3, got layer1`,
    hint: 'A scheme is what defineScheme({...}) returns.',
  });
});

test('a calibration, which is of one scheme, is refused with one for every layer', async () => {
  const options = { ...folderWith().options, calibration: 'text.calibration' };
  const run = reconstruct(quietContext(), 'mix.ts#layer*', options);
  await expect(run).rejects.toThrow(
    '--calibration: expected one scheme for all layers, got "mix.ts#layer*". A calibration is of one scheme: name it, and give a file of the layers that have it.',
  );
});

/** As a process of its own: the hooks that load a user's file belong to the whole process. */
function cliWith(options: Parameters<typeof reconstruct>[2], scheme: string) {
  const given = Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]);
  return spawned(['reconstruct', scheme, ...given, '--json']);
}

test('what is wrong is said before a device is opened', async () => {
  const opened = () => {
    throw new Error('opened');
  };
  const { options, input } = folderWith(
    new Map(layerTensors(9, { keys: halves(0, 1), values: halves(0, 1), tokens: 0 }, model)),
  );
  const fault = (change: Partial<typeof options>) =>
    reconstruct(quietContext(), 'shard', { ...options, ...change }, opened).then(
      () => 'none',
      (error: Error) => error.message,
    );
  expect(await fault({ device: 'tpu' })).toMatchInlineSnapshot(
    `"--device: expected one of emulator, webgpu, cuda, got "tpu". Names are matched exactly."`,
  );
  expect((await fault({})).replace(input, 'FILE')).toMatchInlineSnapshot(
    `"FILE: tensor layers.9: expected layers 0 to 3 of narrow, got 9. Write keys after RoPE, values, and the queries of the last positions, all as F16 tensors."`,
  );
  expect(await fault({ input: '/no/such/file' })).toMatchInlineSnapshot(
    `"--input /no/such/file: expected a file that can be read, got ENOENT. Give a safetensors file of less than 2 GiB; layers may be spread over several."`,
  );
  expect(await fault({ output: '/no/such/folder/file' })).toMatchInlineSnapshot(
    `"--output: expected a place to write /no/such/folder/file, got a path through a folder that does not exist. Choose another path."`,
  );
});

test('the command needs its files', async () => {
  const run = await cli('reconstruct', 'shard', '--model', 'smollm2-135m', '--device', 'emulator', '--json');
  expect(run.code).toBe(2);
  expect(errorOf(run).message).toBe("required option '--input <file>' not specified");
});
