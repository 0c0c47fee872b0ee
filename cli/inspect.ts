import { halfPrecisionBytes, layoutSequence, recordBytes, recordWords, rowsOf } from '../codegen/plan/layout.js';
import { geometryOf } from '../dsl/geometry.js';
import type { Context, Outcome } from './output.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { grouped, table } from './table.js';
import { wholeNumber } from './values.js';

export interface InspectOptions {
  readonly model: string;
  readonly tokens: string;
  readonly generated: string;
}

interface PlannedBuffer {
  readonly name: string;
  /** Which allocation it lies in: the share of the cache buffer, or the sequence's record. */
  readonly buffer: 'cache' | 'sequences';
  readonly bytes: number;
  /** From the start of the sequence's share, or of its record; null for padding, which lies in several places. */
  readonly offset: number | null;
  readonly rows: number | null;
  readonly bytesPerRow: number | null;
  readonly shape: string;
}

const mostTokens = 2 ** 24;

/** A short prompt is larger than in fp16: its codebook and basis do not shrink with it. */
const sizeText = (ratio: number) =>
  ratio < 1 ? `${(1 / ratio).toFixed(2)} times larger` : `${ratio.toFixed(2)} times smaller`;

export async function inspect(context: Context, schemeName: string, options: InspectOptions): Promise<Outcome> {
  const tokens = wholeNumber('--tokens', options.tokens, { from: 1, to: mostTokens });
  const generated = wholeNumber('--generated', options.generated, { from: 0, to: mostTokens });
  const model = await resolveModel(options.model);
  const scheme = await resolveScheme(schemeName, model);
  const geometry = geometryOf(scheme, model);
  const layout = layoutSequence(geometry, { tokens, generated });
  if (tokens + generated > model.maxPositions) {
    context.progress(`note: ${model.name} has ${model.maxPositions} positions, fewer than ${tokens + generated}`);
  }

  const buffers: PlannedBuffer[] = layout.parts.map((part) => ({
    name: part.name,
    buffer: 'cache',
    bytes: part.bytes,
    offset: part.offset,
    rows: rowsOf(part, layout.capacity),
    bytesPerRow: part.wordsPerRow * 4,
    shape: part.holds,
  }));
  const padding = layout.bytes - buffers.reduce((sum, { bytes }) => sum + bytes, 0);
  const none = { offset: null, rows: null, bytesPerRow: null };
  buffers.push({
    name: 'padding',
    buffer: 'cache',
    bytes: padding,
    ...none,
    shape: 'parts to 16 bytes, the share to 256',
  });
  buffers.push({
    name: 'record',
    buffer: 'sequences',
    bytes: recordBytes,
    offset: 0,
    rows: 1,
    bytesPerRow: recordBytes,
    shape: `u32 [${recordWords}], lengths and offsets`,
  });

  const totalBytes = layout.bytes + recordBytes;
  const fp16Bytes = halfPrecisionBytes(geometry, tokens + generated);
  const ratio = fp16Bytes / totalBytes;
  const bytesPerToken = totalBytes / (tokens + generated);
  const share = (bytes: number) => `${((bytes / totalBytes) * 100).toFixed(1)}%`;
  const rows = buffers.map((each) => [
    each.name,
    each.shape,
    each.rows === null ? '' : grouped(each.rows),
    grouped(each.bytes),
    share(each.bytes),
    each.offset === null ? '' : each.buffer === 'sequences' ? 'own buffer' : grouped(each.offset),
  ]);
  const columns = [
    { title: 'part' },
    { title: 'shape' },
    { title: 'rows', align: 'right' },
    { title: 'bytes', align: 'right' },
    { title: 'share', align: 'right' },
    { title: 'offset', align: 'right' },
  ] as const;
  const heading = `${scheme.name} on ${model.name}: one layer, one sequence, ${grouped(tokens)} prompt and ${grouped(generated)} generated tokens`;
  const kinds = model.kinds.map(({ rope, slidingWindow }, kind) => ({
    layers: model.layerKinds.filter((of) => of === kind).length,
    rope: rope.type,
    theta: rope.theta,
    rotaryDim: rope.rotaryDim,
    pairing: rope.pairing,
    slidingWindow: slidingWindow ?? null,
  }));
  const layers = kinds
    .map(({ layers: count, rope, theta, rotaryDim, pairing, slidingWindow }) => {
      const seen = slidingWindow === null ? 'all tokens' : `the last ${grouped(slidingWindow)} tokens`;
      const turned = rotaryDim === model.headDim ? 'all channels' : `${rotaryDim} of ${model.headDim} channels`;
      const angles = rope === 'none' ? 'no RoPE' : `RoPE ${rope}, theta ${grouped(theta)}, ${pairing} pairs, ${turned}`;
      return `${count} layers see ${seen}: ${angles}`;
    })
    .join('\n');
  const closing = `${grouped(totalBytes)} bytes, ${bytesPerToken.toFixed(1)} a token; fp16 ${grouped(fp16Bytes)}; ${sizeText(ratio)}`;
  return {
    json: {
      scheme: scheme.name,
      model: model.name,
      tokens,
      generated,
      ratio,
      bytesPerToken,
      totalBytes,
      fp16Bytes,
      layers: kinds,
      capacity: layout.capacity,
      buffers,
    },
    text: `${heading}\n${layers}\n\n${table(columns, rows, context.colors)}\n${closing}\n`,
  };
}
