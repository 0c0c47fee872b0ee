import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import { latentTables } from './latentParts.js';
import type { TableName } from './layout.js';

/** A number that templates name, with what it counts. */
interface Named {
  readonly name: string;
  readonly value: number;
  readonly comment: string;
}

/** The numbers of a geometry of latents. */
export function latentConstants(g: LatentGeometry): readonly Named[] {
  return [
    { name: 'LATENT_DIM', value: g.latentDim, comment: 'channels of a latent, the first of a token' },
    { name: 'ROTARY_DIM', value: g.rotaryDim, comment: 'channels of a rotary part' },
    { name: 'TOKEN_DIM', value: g.headDim, comment: 'channels of a token: latent, then rotary part' },
    { name: 'TOKEN_WORDS', value: g.headDim / 2, comment: 'words of a token in f16' },
    { name: 'HEADS_PER_BLOCK', value: g.headsPerBlock, comment: 'query heads that a block takes' },
    ...ofPart('LATENT', g.latentDim, g.latent),
    ...ofPart('ROTARY', g.rotaryDim, g.rotary),
    { name: 'STREAM_LATENT_WORDS', value: g.streamLatentWords, comment: "words of a stream token's latent" },
    { name: 'STREAM_ROTARY_WORDS', value: g.streamRotaryWords, comment: "words of a stream token's rotary part" },
    ...levelConstants(g),
  ];
}

function ofPart(name: 'LATENT' | 'ROTARY', channels: number, groups: ScalarGroups | undefined): readonly Named[] {
  const noun = name === 'LATENT' ? 'latent' : 'rotary part';
  const span = channels & -channels;
  const coded: readonly Named[] = groups
    ? [
        {
          name: `${name}_SCALE_CHANNELS`,
          value: groups.scaleChannels,
          comment: `channels of a ${noun} that share a scale`,
        },
        { name: `${name}_BLOCKS`, value: channels / groups.scaleChannels, comment: `scales of a ${noun}` },
        {
          name: `${name}_SCALE_WORDS`,
          value: groups.scaleRowWords,
          comment: `words of the scales of a ${noun}, two each`,
        },
      ]
    : [];
  return [
    { name: `${name}_WORDS`, value: groups?.headWords ?? channels / 2, comment: `words of a middle token's ${noun}` },
    ...coded,
    { name: `${name}_SPAN`, value: span, comment: `channels of one Hadamard block of a ${noun}` },
    { name: `${name}_HADAMARD_SCALE`, value: 1 / Math.sqrt(span), comment: `1 / sqrt(${name}_SPAN)` },
  ];
}

function levelConstants(g: LatentGeometry): readonly Named[] {
  const names: Partial<Record<TableName, string>> = {
    latentLevels: 'LATENT_LEVELS',
    rotaryLevels: 'ROTARY_LEVELS',
    streamRotaryLevels: 'STREAM_ROTARY_LEVELS',
  };
  return latentTables(g).flatMap(({ name, offset, holds }) => {
    const constant = names[name];
    return constant === undefined ? [] : [{ name: constant, value: offset, comment: `offset in the tables: ${holds}` }];
  });
}
