import { describe, expect, test } from 'vitest';
import { resolveScheme } from '../../cli/resolve.js';
import { defaultTargets } from '../../codegen/generate.js';
import { evaluateExtent } from '../../codegen/manifest.js';
import { splitPrompt } from '../../codegen/plan/layout.js';
import { type Geometry, geometryOf } from '../../dsl/geometry.js';
import { presetModel, presetNames } from '../../dsl/model.js';
import { isLatent } from '../../dsl/scheme.js';
import { schemeNames } from '../../dsl/schemes/presets.js';
import { chooseTunables } from '../../dsl/stage.js';
import { stagesOf } from '../../dsl/stages/index.js';

/** Blocks in a dimension of a grid that every WebGPU device takes. */
const mostBlocks = 65535;
const tokens = 131072;

const llama = presetModel('llama-3.1-8b');
const schemes = await Promise.all(schemeNames.map((name) => resolveScheme(name, llama)));
const geometries = schemes.flatMap((scheme) =>
  presetNames.flatMap((name) => {
    const model = presetModel(name);
    // Blocks of 64 channels do not divide a head of 96, and one Hadamard transform is not of it.
    const divides = !['nf4', 'turboquant-prod4'].includes(scheme.name) || model.headDim % 64 === 0;
    const fits = divides && isLatent(scheme) === (model.latent !== undefined);
    return fits ? [{ title: `${scheme.name}, ${name}`, g: geometryOf(scheme, model) as Geometry }] : [];
  }),
);

describe('a prompt of 128K tokens is compressed and decoded in grids that WebGPU has', () => {
  test.each(geometries)('$title', ({ g }) => {
    const middleTokens = splitPrompt(g, tokens).middle;
    const dimensions = { tokens, promptTokens: tokens, middleTokens, queryTokens: 32 };
    const target = defaultTargets.wgsl;
    const tooLarge = stagesOf[g.family]
      .filter(({ name }) => !['copy', 'append', 'attend'].includes(name))
      .flatMap((stage) => stage.kernels(g, chooseTunables(stage, g, target, {}), target))
      .map(({ entry, grid }) => ({ entry, grid: grid.map((extent) => evaluateExtent(extent, dimensions)) }))
      .filter(({ grid }) => grid.some((blocks) => blocks > mostBlocks));
    expect(tooLarge).toEqual([]);
  });
});
