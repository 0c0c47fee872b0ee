import { writeFile } from 'node:fs/promises';
import { packagePath } from '../codegen/packageRoot.js';
import { geometryOf } from '../dsl/geometry.js';
import { shard } from '../dsl/schemes/shard.js';
import { shardPlus } from '../dsl/schemes/shardPlus.js';
import { tiltFast, tiltSafe } from '../dsl/schemes/tilt.js';
import { attentionError, decodeShard, decodeTilt, encodeShard, encodeTilt } from '../runtime/reference/index.js';
import { loadActivations } from '../runtime/report/activations.js';
import { codecValues } from '../runtime/verify/codeValues.js';

/**
 * What the reference implementation's own encoder loses on the recorded activations: test data, written once. The mean
 * over seeds, because the start of k-means alone moves a layer's error by more than 1 %.
 */
const seeds = [1, 2, 3, 4];
const activations = await loadActivations(packagePath('test', 'fixtures', 'smollm2-135m-kv.safetensors'));
const errors: Record<string, Record<string, number>> = {};
for (const scheme of [shard, shardPlus]) {
  const g = geometryOf(scheme, activations.model);
  const [, pca] = scheme.keys;
  const [, , vq] = scheme.values;
  const ofLayers: Record<string, number> = {};
  for (const layer of activations.layers) {
    const { exact, queries, visible } = activations.layer(layer);
    const lost = seeds.map((seed) => {
      const parts = encodeShard(exact, activations.model, {
        rank: g.rank,
        bits: g.keyGroups.map(({ bits }) => bits),
        ...(g.allocatedGroups > 0 ? { budget: g.keyRowWords * 32 } : {}),
        ...(g.weighted ? { queries } : {}),
        unbiased: vq.unbiased,
        group: pca.group,
        channels: vq.channels,
        entries: vq.entries,
        iterations: vq.iterations,
        seed,
        sinks: scheme.sinks,
        window: scheme.window,
      });
      return attentionError({ queries, exact, decoded: decodeShard(parts), visible });
    });
    ofLayers[layer] = lost.reduce((sum, error) => sum + error, 0) / seeds.length;
    console.log(scheme.name, layer, ofLayers[layer], lost);
  }
  errors[scheme.name] = ofLayers;
}
// Nothing in it is random.
for (const scheme of [tiltFast, tiltSafe]) {
  const g = geometryOf(scheme, activations.model);
  const { codec, levelChannels, scaleChannels } = g.values;
  const hasOffset = codec.device.offset !== undefined;
  const rule = {
    levels: [...codecValues(codec, levelChannels)],
    offset: hasOffset ? 'least' : 'none',
    scale: hasOffset ? 'largest' : 'norm',
  } as const;
  const ofLayers: Record<string, number> = {};
  for (const layer of activations.layers) {
    const { exact, queries, visible } = activations.layer(layer);
    const parts = encodeTilt(exact, activations.model, {
      bits: scheme.keys[2].bits,
      tile: g.tile,
      group: g.groupComponents,
      rangeBlock: g.rangeBlock,
      queries,
      values: { rule, channels: scaleChannels },
      gains: g.gained,
      sinks: scheme.sinks,
      window: scheme.window,
      layer,
    });
    ofLayers[layer] = attentionError({ queries, exact, decoded: decodeTilt(parts), visible });
    console.log(scheme.name, layer, ofLayers[layer]);
  }
  errors[scheme.name] = ofLayers;
}
await writeFile(packagePath('test', 'fixtures', 'reference-error.json'), `${JSON.stringify(errors, null, 2)}\n`);
