import { getFloat16 } from '@petamoriken/float16';
import * as z from 'zod';
import { KvforgeError } from '../dsl/errors.js';

const elementBytes = { F16: 2, BF16: 2, F32: 4, U8: 1, I8: 1, U32: 4 } as const;
const dtypes = Object.keys(elementBytes) as (keyof typeof elementBytes)[];

export interface Tensor {
  readonly dtype: keyof typeof elementBytes;
  readonly shape: readonly number[];
  /** Little-endian elements, row-major: a view of the file, at any alignment. */
  readonly bytes: Uint8Array;
}

export interface Safetensors {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly metadata: ReadonlyMap<string, string>;
}

const sizeError = { error: 'a size of 0 or more' };
const size = z.int(sizeError).min(0, sizeError);
const entrySchema = z.object(
  {
    dtype: z.enum(dtypes, { error: `${dtypes.slice(0, -1).join(', ')} or ${dtypes.at(-1)}` }),
    shape: z.array(size, { error: 'a list of sizes' }),
    data_offsets: z.tuple([size, size], { error: 'two byte offsets' }),
  },
  { error: 'dtype, shape and data_offsets' },
);
const metadataSchema = z.record(z.string(), z.string({ error: 'a string' }), { error: 'an object of strings' });

/**
 * Reads the bytes of a safetensors file and trusts none of them: every fault is an `invalid-input` error.
 * Source: https://github.com/huggingface/safetensors#format
 *
 * @example
 * const { tensors, metadata } = parseSafetensors(await readFile('cache.safetensors'));
 * tensors.get('layers.14.k')!.dtype; // 'F16'
 * metadata.get('positions'); // '0..2047'
 */
export function parseSafetensors(file: Uint8Array): Safetensors {
  const available = file.length - 8;
  if (available < 2) throw invalid('file', 'at least 10 bytes', `${file.length}`);
  const declared = viewOf(file).getBigUint64(0, true);
  if (declared > BigInt(available)) throw invalid('header length', `at most ${available} bytes`, `${declared}`);
  const data = file.subarray(8 + Number(declared));
  const header = parseHeader(file.subarray(8, 8 + Number(declared)));

  const { __metadata__: described, ...entries } = header;
  const metadata = new Map(Object.entries(described === undefined ? {} : check(metadataSchema, described, 'metadata')));
  const tensors = new Map<string, Tensor>();
  let end = 0;
  const sorted = Object.entries(entries)
    .map(([name, entry]) => ({ name, ...check(entrySchema, entry, `tensor ${JSON.stringify(name)}`) }))
    .sort((a, b) => a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1]);
  for (const { name, dtype, shape, data_offsets } of sorted) {
    const at = `tensor ${JSON.stringify(name)}`;
    const [from, to] = data_offsets;
    const bytes = shape.reduce((product, extent) => product * extent, elementBytes[dtype]);
    // The format allows neither gaps nor overlaps, so sorted tensors follow one another exactly.
    if (from !== end) throw invalid(at, `data from byte ${end}, where the tensor before it ends`, `${from}`);
    if (to > data.length) throw invalid(at, `data within the ${data.length} bytes of the file`, `an end at ${to}`);
    if (to - from !== bytes) throw invalid(at, `${bytes} bytes for ${dtype} [${shape.join(', ')}]`, `${to - from}`);
    tensors.set(name, { dtype, shape, bytes: data.subarray(from, to) });
    end = to;
  }
  if (end !== data.length) throw invalid('file', `${end} bytes of tensor data`, `${data.length}`);
  return { tensors, metadata };
}

/**
 * The bytes of a safetensors file, tensors in the order of the map; what follows the header starts on 8 bytes.
 *
 * @example
 * parseSafetensors(packSafetensors(tensors, { source: 'a prompt' })).metadata.get('source'); // 'a prompt'
 */
export function packSafetensors(
  tensors: ReadonlyMap<string, Tensor>,
  metadata: Readonly<Record<string, string>>,
): Uint8Array {
  let end = 0;
  const entries = [...tensors].map(([name, { dtype, shape, bytes }]) => {
    const from = end;
    end += bytes.length;
    return [name, { dtype, shape, data_offsets: [from, end] }] as const;
  });
  const text = JSON.stringify(Object.fromEntries([['__metadata__', metadata], ...entries]));
  const header = new TextEncoder().encode(text);
  const start = 8 + Math.ceil(header.length / 8) * 8;
  const file = new Uint8Array(start + end).fill(0x20, 8 + header.length, start);
  viewOf(file).setBigUint64(0, BigInt(start - 8), true);
  file.set(header, 8);
  for (const [name, { data_offsets }] of entries) file.set(tensors.get(name)!.bytes, start + data_offsets[0]!);
  return file;
}

/**
 * All elements, exactly, in row-major order.
 *
 * @example
 * tensorValues({ dtype: 'F16', shape: [2], bytes: Uint8Array.of(0, 0x3c, 0, 0xc0) }); // [1, -2]
 */
export function tensorValues({ dtype, bytes }: Tensor): Float64Array {
  const view = viewOf(bytes);
  const values = new Float64Array(bytes.length / elementBytes[dtype]);
  if (dtype === 'F32') return values.map((_, index) => view.getFloat32(index * 4, true));
  if (dtype === 'U32') return values.map((_, index) => view.getUint32(index * 4, true));
  if (dtype === 'U8') return values.map((_, index) => view.getUint8(index));
  if (dtype === 'I8') return values.map((_, index) => view.getInt8(index));
  const table = dtype === 'F16' ? halfValues() : bfloatValues();
  return values.map((_, index) => table[view.getUint16(index * 2, true)]!);
}

// float16's own reader takes 0.2 us an element; a table of all 65536 values makes a large file affordable.
let halves: Float32Array | undefined;
function halfValues(): Float32Array {
  halves ??= new Float32Array(65536).map((_, bits) => getFloat16(new DataView(Uint16Array.of(bits).buffer), 0, true));
  return halves;
}

function bfloatValues(): Float32Array {
  return new Float32Array(new Uint32Array(65536).map((_, bits) => bits << 16).buffer);
}

function parseHeader(bytes: Uint8Array): Record<string, unknown> {
  let header: unknown;
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    header = JSON.parse(text);
  } catch (cause) {
    throw invalid('header', 'JSON in UTF-8', cause instanceof Error ? cause.message : String(cause), cause);
  }
  if (header === null || typeof header !== 'object' || Array.isArray(header)) {
    throw invalid('header', 'a JSON object', Array.isArray(header) ? 'a list' : String(header));
  }
  rejectDuplicateKeys(text);
  return header as Record<string, unknown>;
}

/** JSON.parse keeps the last of two equal keys silently; here `text` is known to be valid JSON. */
function rejectDuplicateKeys(text: string): void {
  const open: Set<string>[] = [];
  for (const [token, key] of text.matchAll(/("(?:[^"\\]|\\.)*")\s*:|"(?:[^"\\]|\\.)*"|[{}]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (key !== undefined) {
      const name: string = JSON.parse(key);
      if (open.at(-1)!.has(name)) throw invalid('header', 'every name once', `${key} twice`);
      open.at(-1)!.add(name);
    }
  }
}

function check<T>(schema: z.ZodType<T>, value: unknown, at: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  let received = value;
  for (const key of path) received = (received as Record<PropertyKey, unknown>)[key];
  const text = JSON.stringify(received) ?? 'nothing';
  throw invalid([at, ...path].join('.'), message, text.length > 80 ? `${text.slice(0, 77)}...` : text);
}

const viewOf = (bytes: Uint8Array) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

function invalid(at: string, expected: string, received: string, cause?: unknown): KvforgeError {
  const hint = 'Write the file again; a copy that was cut short reads like this.';
  return new KvforgeError('invalid-input', { at: `safetensors ${at}`, expected, received, hint }, { cause });
}
