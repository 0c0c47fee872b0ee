import { createHash } from 'node:crypto';
import * as z from 'zod';
import { KvforgeError } from '../../dsl/errors.js';
import { shown } from '../cache/checkInput.js';
import { packSafetensors, parseSafetensors } from '../safetensors.js';
import { exponentRange, widths } from './quantize.js';

/**
 * An archive is a safetensors file: tensors of bytes, its sections, and in the metadata `format`, `version`, `header` (JSON)
 * and `sha256` of the header, which has that of every section. Sections are `exact` (sinks and window of all layers), and
 * for every part N `parts.N.basis` and `parts.N.codes`.
 */
export const archiveFormat = 'kvforge-archive';
export const archiveVersion = 1;

const count = z
  .int()
  .min(0)
  .max(2 ** 24);
const length = z
  .int()
  .min(0)
  .max(2 ** 31);
const digest = z.string().regex(/^[0-9a-f]{64}$/);
const error = z.number().min(0);
/** Of a model, in characters: names are for people, and may come from anywhere. */
export const longestName = 200;
/** Radians a position, in magnitude: no position may turn to infinity. */
const largestFrequency = 2 ** 64;

const groupSchema = z.tuple([
  z.int().min(1).max(64),
  z.literal([...widths]),
  z.int().min(exponentRange.from).max(exponentRange.to),
  length,
  length,
]);

const partSchema = z.object({
  operand: z.enum(['keys', 'values']),
  /** Places in `layers`. */
  layers: z.array(count).min(1),
  /** `sqrt(sum |x' - x|^2 / sum |x|^2)` over the coded tokens, but for rounding to f16. */
  error,
  /** In the order of components: how many, bits of each, exponent of the largest scale, bytes of scales and of codes. */
  groups: z.array(groupSchema),
});

const ropeSchema = z.object({
  pairing: z.enum(['half', 'interleaved']),
  /** Radians a position, of every pair. */
  frequencies: z.array(z.number().min(-largestFrequency).max(largestFrequency)).max(2 ** 12),
});

const headerSchema = z.object({
  model: z.object({
    name: z
      .string()
      .max(longestName)
      .regex(/^\P{Cc}*$/u, { error: 'a name with control characters' }),
    layers: z.int().min(1).max(100_000),
    kvHeads: z
      .int()
      .min(1)
      .max(2 ** 16),
    headDim: z
      .int()
      .min(1)
      .max(2 ** 16),
  }),
  tokens: count,
  sinks: count,
  window: count,
  /** Of the model, ascending, with the place of each one's RoPE in `ropes`. */
  layers: z.array(z.object({ layer: count, rope: count })).min(1),
  ropes: z.array(ropeSchema).min(1),
  parts: z.array(partSchema).min(2),
  /** Of the bases of another archive, where they are not in this one. */
  basis: digest.optional(),
  sections: z.record(z.string(), digest),
});

export type ArchiveHeader = z.infer<typeof headerSchema>;
export type ArchivePart = ArchiveHeader['parts'][number];
export type ArchivedGroup = ArchivePart['groups'][number];

export interface ParsedArchive {
  readonly header: ArchiveHeader;
  /** By name; all that there must be, with the bytes that were written. */
  readonly sections: ReadonlyMap<string, Uint8Array>;
}

/** Tokens between sinks and window. */
export function codedTokens({ tokens, sinks, window }: Pick<ArchiveHeader, 'tokens' | 'sinks' | 'window'>): number {
  return Math.max(0, tokens - sinks - window);
}

/** Channels of a row: all heads of all layers of the part. */
export function partWidth({ model }: ArchiveHeader, { layers }: Pick<ArchivePart, 'layers'>): number {
  return layers.length * model.kvHeads * model.headDim;
}

/** Components that are coded. */
export function partRank({ groups }: Pick<ArchivePart, 'groups'>): number {
  return groups.reduce((sum, [components]) => sum + components, 0);
}

export const sectionName = (part: number, kind: 'basis' | 'codes') => `parts.${part}.${kind}`;

const sha256 = (bytes: Uint8Array | string) => createHash('sha256').update(bytes).digest('hex');

/** SHA-256 over the bases of all parts. */
export function basisDigest(bases: readonly Uint8Array[]): string {
  const hash = createHash('sha256');
  for (const basis of bases) hash.update(basis);
  return hash.digest('hex');
}

/** The bytes of an archive. */
export function formatArchive(
  header: Omit<ArchiveHeader, 'sections'>,
  sections: ReadonlyMap<string, Uint8Array>,
): Uint8Array {
  const digests = Object.fromEntries([...sections].map(([name, bytes]) => [name, sha256(bytes)]));
  const text = JSON.stringify({ ...header, sections: digests });
  const tensors = [...sections].map(([name, bytes]) => {
    return [name, { dtype: 'U8', shape: [bytes.length], bytes } as const] as const;
  });
  return packSafetensors(new Map(tensors), {
    format: archiveFormat,
    version: String(archiveVersion),
    sha256: sha256(text),
    header: text,
  });
}

/**
 * Reads an archive and trusts none of it. What it states is at most 2 GiB of keys and values.
 *
 * @throws KvforgeError `invalid-input` for a file that is another's, of another version, or damaged; `does-not-fit`
 */
export function parseArchive(file: Uint8Array): ParsedArchive {
  if (!(file instanceof Uint8Array)) {
    const [at, expected, hint] = ['archive', 'the bytes of a file, a Uint8Array', 'Pass what readFile gives.'];
    throw new KvforgeError('wrong-use', { at, expected, received: shown(file), hint });
  }
  const { tensors, metadata } = parseSafetensors(file);
  const format = metadata.get('format');
  if (format !== archiveFormat) {
    const received = format === undefined ? 'a file without a format' : shown(format);
    const hint =
      format === 'kvforge-cache' ? 'Load it with loadCache.' : 'Read a file that kvforge archive pack has written.';
    throw refused('format', JSON.stringify(archiveFormat), received, hint);
  }
  const version = metadata.get('version');
  if (version !== String(archiveVersion)) {
    throw refused(
      'version',
      `${archiveVersion}`,
      String(version),
      'Read it with the version of kvforge that wrote it.',
    );
  }
  const text = metadata.get('header') ?? '';
  checkDigest('header', metadata.get('sha256'), text);
  const header = parseHeader(text);
  const names = sectionNames(header);
  const sections = new Map<string, Uint8Array>();
  for (const name of names) {
    const tensor = tensors.get(name);
    if (tensor?.dtype !== 'U8') throw refused(`section ${name}`, 'its bytes', tensor?.dtype ?? 'nothing', again);
    checkDigest(`section ${name}`, header.sections[name], tensor.bytes);
    sections.set(name, tensor.bytes);
  }
  const other = [...tensors.keys()].find((name) => !sections.has(name));
  if (other !== undefined) throw refused(`section ${shown(other)}`, 'none of this name', 'one', again);
  return { header, sections };
}

const again = 'The file was damaged or changed; pack the cache again.';

function checkDigest(at: string, stated: string | undefined, bytes: Uint8Array | string): void {
  const found = sha256(bytes);
  if (stated !== found) throw refused(`sha256 of ${at}`, String(stated), found, again);
}

function parseHeader(text: string): ArchiveHeader {
  let stated: unknown;
  try {
    stated = JSON.parse(text);
  } catch (cause) {
    throw refused('header', 'JSON', (cause as Error).message, again, cause);
  }
  const parsed = headerSchema.safeParse(stated);
  if (!parsed.success) {
    const { path, message } = parsed.error.issues[0]!;
    throw refused(['header', ...path].join('.'), 'what kvforge writes', message, again);
  }
  const header = parsed.data;
  checkLayers(header);
  checkParts(header);
  checkBytes(header);
  return header;
}

/** @throws KvforgeError `does-not-fit` for 2 GiB or more, which no file could be read back to */
export function checkBytes({ layers, tokens, model }: Pick<ArchiveHeader, 'layers' | 'tokens' | 'model'>): void {
  const bytes = layers.length * tokens * model.kvHeads * model.headDim * 4;
  if (bytes < 2 ** 31) return;
  throw new KvforgeError('does-not-fit', {
    at: 'archive',
    expected: `keys and values of less than ${2 ** 31} bytes`,
    received: String(bytes),
    hint: 'Pack fewer layers into an archive.',
  });
}

function checkLayers({ layers, ropes, model }: ArchiveHeader): void {
  for (const [index, { layer, rope }] of layers.entries()) {
    const least = index === 0 ? 0 : layers[index - 1]!.layer + 1;
    if (layer < least || layer >= model.layers) {
      const expected = `ascending layers below ${model.layers}`;
      throw refused(`header.layers.${index}`, expected, String(layer), again);
    }
    if (rope >= ropes.length) throw refused(`header.layers.${index}.rope`, 'one of the list', String(rope), again);
  }
  for (const [index, { frequencies }] of ropes.entries()) {
    const most = Math.floor(model.headDim / 2);
    if (frequencies.length > most) {
      throw refused(`header.ropes.${index}`, `at most ${most} frequencies`, String(frequencies.length), again);
    }
  }
}

function checkParts(header: ArchiveHeader): void {
  const covered = header.parts.flatMap(({ operand, layers }) => layers.map((layer) => `${operand} ${layer}`));
  const wanted = header.layers.flatMap((_, layer) => [`keys ${layer}`, `values ${layer}`]);
  if (covered.length !== wanted.length || wanted.some((each) => !covered.includes(each))) {
    throw refused('header.parts', 'keys and values of every layer once', `${covered.length} of them`, again);
  }
  for (const [index, part] of header.parts.entries()) {
    const [rank, width] = [partRank(part), codedTokens(header) === 0 ? 0 : partWidth(header, part)];
    if (rank > width) {
      throw refused(`header.parts.${index}.groups`, `at most ${width} components`, String(rank), again);
    }
  }
}

/** Sections that there must be. */
function sectionNames({ parts, basis }: ArchiveHeader): readonly string[] {
  const kinds = basis === undefined ? (['basis', 'codes'] as const) : (['codes'] as const);
  return ['exact', ...parts.flatMap((_, part) => kinds.map((kind) => sectionName(part, kind)))];
}

export function refused(at: string, expected: string, received: string, hint: string, cause?: unknown): KvforgeError {
  return new KvforgeError('invalid-input', { at: `archive, ${at}`, expected, received, hint }, { cause });
}
