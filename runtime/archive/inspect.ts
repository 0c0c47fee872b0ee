import { type ArchiveHeader, codedTokens, parseArchive, partRank, partWidth, sectionName } from './format.js';

/** Channels of an archive that share a basis. */
export interface ArchivedPart {
  readonly operand: 'keys' | 'values';
  /** Of the model. */
  readonly layers: readonly number[];
  /** Channels that the basis is for. */
  readonly width: number;
  /** Components that are coded. */
  readonly rank: number;
  /** `sqrt(sum |x' - x|^2 / sum |x|^2)` over the coded tokens, but for rounding to f16. */
  readonly error: number;
  /** In the order of components. */
  readonly groups: readonly { readonly components: number; readonly bits: number; readonly bytes: number }[];
  /** Of mean and directions; 0 where they are another archive's. */
  readonly basisBytes: number;
}

export interface ArchiveSummary {
  readonly model: ArchiveHeader['model'];
  readonly tokens: number;
  readonly sinks: number;
  readonly window: number;
  /** Tokens between them. */
  readonly coded: number;
  readonly layers: readonly number[];
  readonly bytes: number;
  /** Of one layer. */
  readonly bytesPerToken: number;
  readonly fp16Bytes: number;
  /** Of sinks and window. */
  readonly exactBytes: number;
  readonly headerBytes: number;
  readonly parts: readonly ArchivedPart[];
  /** SHA-256 of the bases that it needs of another archive. */
  readonly basis: string | undefined;
}

/**
 * What is in an archive, without decoding it; checksums are compared.
 *
 * @throws KvforgeError `invalid-input` for a file that is another's, of another version, or damaged
 * @example
 * const file = packArchive({ model, tokens: 256, layers: [{ layer: 0, keys, values }] }, { bytesPerToken: 48 });
 * inspectArchive(file).coded; // 188
 */
export function inspectArchive(file: Uint8Array): ArchiveSummary {
  const { header, sections } = parseArchive(file);
  const { model, tokens, sinks, window, layers } = header;
  const parts = header.parts.map(
    (part, index): ArchivedPart => ({
      operand: part.operand,
      layers: part.layers.map((place) => layers[place]!.layer),
      width: partWidth(header, part),
      rank: partRank(part),
      error: part.error,
      groups: part.groups.map(([components, bits, , scales, codes]) => ({ components, bits, bytes: scales + codes })),
      basisBytes: sections.get(sectionName(index, 'basis'))?.length ?? 0,
    }),
  );
  const inSections = [...sections.values()].reduce((sum, { length }) => sum + length, 0);
  return {
    ...{ model, tokens, sinks, window, parts },
    coded: codedTokens(header),
    layers: layers.map(({ layer }) => layer),
    bytes: file.length,
    bytesPerToken: file.length / (layers.length * Math.max(1, tokens)),
    fp16Bytes: layers.length * tokens * model.kvHeads * model.headDim * 4,
    exactBytes: sections.get('exact')!.length,
    headerBytes: file.length - inSections,
    basis: header.basis,
  };
}
