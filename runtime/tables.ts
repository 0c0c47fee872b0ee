import { type TableName, tablesOf } from '../codegen/plan/layout.js';
import type { Geometry } from '../dsl/geometry.js';
import type { LatentGeometry } from '../dsl/latentGeometry.js';
import { levelsOf } from '../dsl/levels.js';
import { ropeTables, tileAngles } from '../dsl/rope.js';
import { fastPairsOf, splitRope } from '../dsl/ropeSplit.js';

/**
 * The constant tables every kernel shares: stream levels, fine angles, the split of RoPE, coarse angles (see
 * `tablesOf` in `codegen/plan/layout.ts`).
 *
 * @param positions tokens the angles must cover
 * @param frequencies of the layer's RoPE, for the longest prompt
 */
export function buildTables(g: Geometry, positions: number, frequencies: readonly number[]): Float32Array {
  if (g.family === 'latent') return Float32Array.from(latentLevels(g));
  const { fine, coarse } = ropeTables(frequencies, g.pairs, positions, g.angleTile);
  const split = g.family === 'low-rank' ? splitRope(frequencies, g.pairs, fastPairsOf(g.model)) : undefined;
  const named: Partial<Record<TableName, () => ArrayLike<number>>> = {
    levels: () => levelsOf(g.scheme.stream, g.headDim),
    keyLevels: () => (g.family === 'scalar' ? levelsOf(g.keys.codec, g.keys.levelChannels) : []),
    valueLevels: () =>
      g.family === 'scalar' || g.family === 'tilt' ? levelsOf(g.values.codec, g.values.levelChannels) : [],
    projectionSigns: () => (g.family === 'scalar' ? g.keys.projection : []),
    fineAngles: () => fine,
    tileAngles: () => tileAngles(frequencies, g.pairs, g.angleTile),
    splitFunctions: () => split?.functions ?? [],
    splitCoefficients: () => split?.coefficients ?? [],
    coarseAngles: () => coarse,
  };
  const parts = tablesOf(g).map(({ name }) => named[name]!());
  const tables = new Float32Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    tables.set(part, at);
    at += part.length;
  }
  return tables;
}

/** Levels of the stream and of the middle, those of latents before those of rotary parts: `latentTables` in order. */
function latentLevels({ scheme: { stream }, latent, rotary, latentDim, rotaryDim }: LatentGeometry): readonly number[] {
  return [
    ...levelsOf(stream, latentDim),
    ...levelsOf(latent.codec, latent.levelChannels),
    ...(rotary ? [...levelsOf(rotary.codec, rotary.levelChannels), ...levelsOf(stream, rotaryDim)] : []),
  ];
}
