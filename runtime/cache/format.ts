import * as z from 'zod';
import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import { sha256 } from '../../codegen/sha256.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { SequenceLengths } from '../record.js';
import { packSafetensors, parseSafetensors, type Tensor } from '../safetensors.js';
import { shown } from './checkInput.js';
import { type SequenceContents, usedRows } from './contents.js';
import { checkFileBytes } from './fileBytes.js';
import type { CacheIdentity } from './identity.js';
import { mostEvicted } from './lengths.js';

/**
 * The file of a cache: safetensors, with one tensor for every part in use, `sequences.3.keyCodes`, and in the metadata
 * `sha256` (of the whole file, its own digits taken as zeros), `format`, `version`, `identity` and `sequences` (lengths).
 * Window rows come oldest first.
 */
export const cacheFormat = 'kvforge-cache';
export const cacheVersion = 1;

/** What a file holds, whole and in the format, but not yet compared with any cache. */
export interface ParsedCache {
  readonly identity: unknown;
  readonly sequences: readonly SequenceLengths[];
  readonly tensors: ReadonlyMap<string, Tensor>;
}

const blankDigest = '0'.repeat(64);
/** The digest comes first in the header, so that its place is known. */
const digestPlace = 8 + '{"__metadata__":{"sha256":"'.length;

export async function packCache(
  identity: CacheIdentity,
  layout: SequenceLayout,
  sequences: readonly SequenceContents[],
): Promise<Uint8Array> {
  const tensors = new Map<string, Tensor>();
  for (const [sequence, { lengths, parts }] of sequences.entries()) {
    for (const [name, { dtype, shape }] of expectedTensors(layout, lengths)) {
      tensors.set(tensorName(sequence, name), { dtype, shape, bytes: parts.get(name)! });
    }
  }
  const file = packSafetensors(tensors, {
    sha256: blankDigest,
    format: cacheFormat,
    version: String(cacheVersion),
    identity: JSON.stringify(identity),
    sequences: JSON.stringify(sequences.map(({ lengths }) => lengths)),
  });
  // With its header it may be larger than what it holds.
  checkFileBytes(file.length);
  file.set(new TextEncoder().encode(await digestOf(file)), digestPlace);
  return file;
}

const count = z
  .int()
  .min(0)
  .max(2 ** 24);
const sequencesSchema = z
  .array(
    z.object({
      sinkTokens: count,
      middleTokens: count,
      streamTokens: count,
      windowTokens: count,
      windowStart: z.literal(0),
      promptTokens: count,
      evictedTokens: z.int().min(0).max(mostEvicted).default(0),
    }),
  )
  .min(1);

/** @throws KvforgeError `invalid-input` for a file that is another's, of a newer version, or damaged; `does-not-fit` */
export async function parseCache(file: Uint8Array): Promise<ParsedCache> {
  checkFileBytes(file.length);
  const { tensors, metadata } = parseSafetensors(file);
  const format = metadata.get('format');
  if (format !== cacheFormat) {
    const received = format === undefined ? 'a file without a format' : shown(format);
    throw refused('format', JSON.stringify(cacheFormat), received, 'Load a file that a cache was saved to.');
  }
  const version = metadata.get('version');
  if (version !== String(cacheVersion)) {
    throw refused('version', `${cacheVersion}`, String(version), 'Load it with the version of kvforge that saved it.');
  }
  const [stated, digest] = [metadata.get('sha256'), await digestOf(file)];
  if (stated !== digest) {
    throw refused('sha256', digest, String(stated), 'The file was damaged or changed; save the cache again.');
  }
  const sequences = sequencesSchema.safeParse(parsed(metadata.get('sequences')));
  if (!sequences.success) {
    const received = shown(metadata.get('sequences'));
    throw refused('sequences', 'the lengths of one sequence or more', received, 'Save the cache again.');
  }
  return { identity: parsed(metadata.get('identity')), sequences: sequences.data, tensors };
}

/**
 * Takes the contents of one sequence out of a file.
 *
 * @throws KvforgeError `invalid-input` when a part is missing or has another shape
 */
export function contentsFrom(
  { sequences, tensors }: ParsedCache,
  layout: SequenceLayout,
  sequence: number,
): SequenceContents {
  const lengths = sequences[sequence]!;
  const parts = new Map<PartName, Uint8Array>();
  for (const [part, expected] of expectedTensors(layout, lengths)) {
    const name = tensorName(sequence, part);
    const tensor = tensors.get(name);
    if (tensor === undefined || describe(tensor) !== describe(expected)) {
      throw refused(name, describe(expected), tensor ? describe(tensor) : 'nothing', 'Save the cache again.');
    }
    parts.set(part, tensor.bytes);
  }
  return { lengths, parts };
}

/** @throws KvforgeError `invalid-input` for a tensor that is no part in use of any sequence */
export function checkTensorNames({ sequences, tensors }: ParsedCache, layout: SequenceLayout): void {
  const known = new Set(
    sequences.flatMap((lengths, sequence) =>
      expectedTensors(layout, lengths).map(([part]) => tensorName(sequence, part)),
    ),
  );
  for (const name of tensors.keys()) {
    if (known.has(name)) continue;
    throw refused(`tensor ${shown(name)}`, 'none of this name', 'one', 'Load a file as the cache was saved to it.');
  }
}

const tensorName = (sequence: number, part: PartName) => `sequences.${sequence}.${part}`;
const describe = ({ dtype, shape }: Pick<Tensor, 'dtype' | 'shape'>) => `${dtype} [${shape.join(', ')}]`;

/** Types and shapes, [rows][elements], of the parts that hold something. */
function expectedTensors(layout: SequenceLayout, lengths: SequenceLengths) {
  const bytes = { F16: 2, U32: 4, I8: 1, U8: 1 } as const;
  return layout.parts.flatMap((part): [PartName, Pick<Tensor, 'dtype' | 'shape'>][] => {
    const rows = usedRows(part, lengths);
    const { name, dtype, wordsPerRow } = part;
    return rows === 0 ? [] : [[name, { dtype, shape: [rows, (wordsPerRow * 4) / bytes[dtype]] }]];
  });
}

/** SHA-256 of the file with zeros where the digest is. */
function digestOf(file: Uint8Array): Promise<string> {
  const blank = Uint8Array.from(file);
  blank.fill('0'.charCodeAt(0), digestPlace, digestPlace + blankDigest.length);
  return sha256(blank);
}

function parsed(text: string | undefined): unknown {
  try {
    return JSON.parse(text ?? 'null');
  } catch {
    return undefined;
  }
}

function refused(at: string, expected: string, received: string, hint: string): KvforgeError {
  return new KvforgeError('invalid-input', { at: `cache file, ${at}`, expected, received, hint });
}
