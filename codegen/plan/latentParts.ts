import type { ScalarGroups } from '../../dsl/geometry.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { PartDescriptor, PartName, TableDescriptor } from './layout.js';

/** The parts of one sequence and layer of latents, in memory order. */
export function latentParts(g: LatentGeometry): readonly PartDescriptor[] {
  const token = `[${g.latentDim} latent, ${g.rotaryDim} rotary after RoPE]`;
  const exact = { dtype: 'F16', wordsPerRow: g.headDim / 2 } as const;
  const { rotary, streamBits } = g;
  const rotaryHalves = { dtype: 'F16', wordsPerRow: g.rotaryDim / 2 } as const;
  return [
    { name: 'sinkKeys', rows: 'sinks', ...exact, holds: `f16 [sinks]${token}` },
    { name: 'windowKeys', rows: 'window', ...exact, holds: `f16 ring [window]${token}` },
    ...codedParts(g.latent, g.latentDim, ['latentCodes', 'latentScales', 'latentOffsets']),
    ...(rotary
      ? codedParts(rotary, g.rotaryDim, ['rotaryKeys', 'rotaryScales', 'rotaryOffsets'])
      : [{ name: 'rotaryKeys', rows: 'middle', ...rotaryHalves, holds: `f16 [middle][${g.rotaryDim}]` } as const]),
    {
      name: 'streamLatents',
      rows: 'stream',
      dtype: 'U32',
      wordsPerRow: g.streamLatentWords,
      holds: `${streamBits}-bit fields [stream][${g.latentDim}], after Hadamard`,
    },
    {
      name: 'streamRotaryKeys',
      rows: 'stream',
      ...(rotary ? { dtype: 'U32', wordsPerRow: g.streamRotaryWords } : rotaryHalves),
      holds: rotary
        ? `${streamBits}-bit fields [stream][${g.rotaryDim}], after Hadamard`
        : `f16 [stream][${g.rotaryDim}]`,
    },
    {
      name: 'streamNorms',
      rows: 'stream',
      dtype: 'F16',
      wordsPerRow: 1,
      holds: `f16 [stream][of the latent, ${rotary ? 'of the rotary part' : '0'}]`,
    },
  ];
}

function codedParts(
  { codec, bits, headWords, turned, scaleChannels, scaleRowWords }: ScalarGroups,
  channels: number,
  [codes, scales, offsets]: readonly [PartName, PartName, PartName],
): readonly PartDescriptor[] {
  const shared = { rows: 'middle', dtype: 'F16', wordsPerRow: scaleRowWords } as const;
  const holds = `f16 [middle][${channels / scaleChannels} of ${scaleChannels} channels]`;
  return [
    {
      name: codes,
      rows: 'middle',
      dtype: 'U32',
      wordsPerRow: headWords,
      holds: `${bits}-bit fields [middle][${channels}]${turned ? ', after Hadamard' : ''}`,
    },
    { name: scales, ...shared, holds },
    ...(codec.device.offset ? [{ name: offsets, ...shared, holds }] : []),
  ];
}

/** Levels alone: rotary parts come and stay rotated. */
export function latentTables({ rotary, latent, streamBits }: LatentGeometry): readonly TableDescriptor[] {
  const over = 'over their scales';
  const tables: readonly Omit<TableDescriptor, 'offset'>[] = [
    { name: 'levels', shape: [2 ** streamBits], holds: 'stream levels of latents' },
    { name: 'latentLevels', shape: [2 ** latent.bits], holds: `values of the codes of latents, ${over}` },
    ...(rotary
      ? ([
          { name: 'rotaryLevels', shape: [2 ** rotary.bits], holds: `values of the codes of rotary parts, ${over}` },
          { name: 'streamRotaryLevels', shape: [2 ** streamBits], holds: 'stream levels of rotary parts' },
        ] as const)
      : []),
  ];
  let offset = 0;
  return tables.map((table) => {
    const placed = { ...table, offset };
    offset += table.shape[0] as number;
    return placed;
  });
}
