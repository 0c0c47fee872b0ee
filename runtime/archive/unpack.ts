import { KvforgeError } from '../../dsl/errors.js';
import type { ModelShape } from '../../dsl/model.js';
import type { DecodedTokens } from '../cache/read.js';
import type { Matrix } from '../reference/shapes.js';
import { expand, orthonormal, type StoredBasis } from './basis.js';
import { inflated, splitSymbols, symbolsPerByte } from './entropy.js';
import { exactBits, writeExact } from './exact.js';
import {
  type ArchiveHeader,
  type ArchivePart,
  basisDigest,
  codedTokens,
  type ParsedArchive,
  parseArchive,
  partRank,
  partWidth,
  refused,
  sectionName,
} from './format.js';
import { checkModel, rotationOf } from './identity.js';
import { type CodedGroup, decodeGroup, type GroupPlace, sideLevels } from './quantize.js';
import { allFinite, columnsOf, numbersOf, type Tokens, writeRows } from './rows.js';

/** One layer as `KvCache.prefill` takes it. */
export interface UnpackedLayer extends DecodedTokens {
  readonly layer: number;
}

export interface UnpackedArchive {
  /** Whose cache it is. */
  readonly model: ArchiveHeader['model'];
  readonly tokens: number;
  readonly layers: readonly UnpackedLayer[];
}

export interface UnpackOptions {
  /** Refuses an archive of another model. */
  readonly model?: ModelShape;
  /** The archive whose bases were used, where it was packed with one. */
  readonly basis?: Uint8Array;
}

/**
 * Reads keys and values back from what `packArchive` wrote: sinks and window to the bit, the tokens between them with the
 * error that `inspectArchive` states.
 *
 * @throws KvforgeError `invalid-input` for a file that is another's, of another version or model, or damaged; `wrong-use`
 * where the bases of another archive are needed
 * @example
 * const file = packArchive({ model, tokens: 256, layers: [{ layer: 0, keys, values }] }, { bytesPerToken: 48 });
 * const { layers } = unpackArchive(file, { model });
 * layers[0]!.keys.length === keys.length; // true
 */
export function unpackArchive(file: Uint8Array, { model, basis }: UnpackOptions = {}): UnpackedArchive {
  const archive = parseArchive(file);
  const { header } = archive;
  if (model) checkModel(header, model);
  const { bases } = basis === undefined ? basesOf(archive) : sharedBases(header, parseArchive(basis));
  const { kvHeads, headDim } = header.model;
  const { tokens } = header;
  const exact = exactBits(archive);
  // All of it is read before layers get memory: lengths that the file does not hold are refused by then.
  const coded = header.parts.map((_, index) => codedGroups(archive, index, bases[index]!));
  const layers = header.layers.map(({ layer }): UnpackedLayer => {
    const empty = () => new Uint16Array(kvHeads * tokens * headDim);
    return { layer, keys: empty(), values: empty(), tokens };
  });
  writeExact(header, exact, layers);
  for (const [index, part] of header.parts.entries()) {
    const rows = rowsOfPart(coded[index]!, codedTokens(header), bases[index]!);
    for (const [place, position] of part.layers.entries()) {
      const to: Tokens = { bits: layers[position]![part.operand], kvHeads, tokens, headDim };
      const rope = part.operand === 'keys' ? rotationOf(header, position) : undefined;
      const own = part.layers.length === 1 ? rows : columnsOf(rows, place * kvHeads * headDim, kvHeads * headDim);
      writeRows(own, to, header.sinks, rope);
    }
  }
  return { model: header.model, tokens, layers };
}

/**
 * The bases that an archive holds.
 *
 * @throws KvforgeError `wrong-use` where they are another's
 */
export function basesOf({ header, sections }: ParsedArchive): {
  readonly bases: readonly StoredBasis[];
  readonly digest: string;
} {
  if (header.basis !== undefined) {
    throw new KvforgeError('wrong-use', {
      at: 'basis',
      expected: `the archive whose bases have the sha256 ${header.basis}`,
      received: 'none',
      hint: 'Give the archive that this one was packed with.',
    });
  }
  const bytes = header.parts.map((_, index) => sections.get(sectionName(index, 'basis'))!);
  const bases = header.parts.map((part, index) => basisOf(header, part, bytes[index]!, index));
  return { bases, digest: basisDigest(bytes) };
}

function basisOf(header: ArchiveHeader, part: ArchivePart, bytes: Uint8Array, index: number): StoredBasis {
  const [width, rank] = [partWidth(header, part), partRank(part)];
  const at = `section ${sectionName(index, 'basis')}`;
  if (bytes.length < 2 * width) {
    throw refused(at, `at least ${2 * width} bytes of means`, String(bytes.length), 'Pack the cache again.');
  }
  // A copy: the bytes may lie in the file at an odd address, and `slice` of Node's buffers gives a view.
  const mean = new Uint16Array(Uint8Array.from(bytes.subarray(0, 2 * width)).buffer);
  if (!allFinite(mean)) {
    throw refused(at, 'finite means', 'one that is not', 'Pack the cache again.');
  }
  const codes = inflated(bytes.subarray(2 * width), rank * width, at);
  return { width, rank, mean, codes: new Int8Array(codes.buffer, codes.byteOffset, codes.length) };
}

function sharedBases(header: ArchiveHeader, other: ParsedArchive): ReturnType<typeof basesOf> {
  const found = basesOf(other);
  if (header.basis === found.digest) return found;
  throw new KvforgeError('wrong-use', {
    at: 'basis',
    expected: header.basis === undefined ? 'none, as the archive has its own' : `bases of sha256 ${header.basis}`,
    received: `an archive with bases of sha256 ${found.digest}`,
    hint: header.basis === undefined ? 'Leave it out.' : 'Give the archive that this one was packed with.',
  });
}

interface PlacedGroup {
  readonly place: GroupPlace;
  readonly coded: CodedGroup;
}

/** Scales and codes of a part. */
function codedGroups({ header, sections }: ParsedArchive, index: number, basis: StoredBasis): readonly PlacedGroup[] {
  const part = header.parts[index]!;
  const tokens = codedTokens(header);
  const rank = partRank(part);
  const name = sectionName(index, 'codes');
  const bytes = sections.get(name)!;
  const stated = part.groups.reduce((sum, [, , , scales, codes]) => sum + scales + codes, 0);
  if (stated !== bytes.length) {
    throw refused(`section ${name}`, `${stated} bytes`, String(bytes.length), 'Pack the cache again.');
  }
  const width = partWidth(header, part);
  if (rank > basis.rank || width !== basis.width) {
    const [expected, received] = [`${basis.rank} components of ${basis.width} channels`, `${rank} of ${width}`];
    throw refused(`section ${name}`, `at most the ${expected} of its basis`, received, 'Pack the cache again.');
  }
  let end = 0;
  const read = (length: number, count: number, at: string) => {
    const piece = inflated(bytes.subarray(end, end + length), count, at);
    end += length;
    return piece;
  };
  let start = 0;
  return part.groups.map(([components, bits, exponent, scaleBytes, codeBytes], group) => {
    const at = `section ${name}, group ${group}`;
    const scales = read(scaleBytes, tokens, `${at}, scales`);
    const symbols = components * tokens;
    const codes = splitSymbols(read(codeBytes, Math.ceil(symbols / symbolsPerByte(bits)), at), bits, symbols);
    const most = 2 * sideLevels(bits);
    const wrong = codes.find((code) => code > most);
    if (wrong !== undefined) throw refused(at, `codes up to ${most}`, String(wrong), 'Pack the cache again.');
    const place = { start, components, bits };
    start += components;
    return { place, coded: { exponent, scales, codes } };
  });
}

/** Coded rows of a part, read back. */
function rowsOfPart(groups: readonly PlacedGroup[], tokens: number, basis: StoredBasis): Matrix {
  const rank = groups.reduce((sum, { place }) => sum + place.components, 0);
  const coefficients = { rows: rank, columns: tokens, data: new Float64Array(rank * tokens) };
  for (const { place, coded } of groups) decodeGroup(coded, place, coefficients);
  const vectors = orthonormal({ width: basis.width, rank, codes: basis.codes.subarray(0, rank * basis.width) });
  return expand(coefficients, numbersOf(basis.mean), vectors);
}
