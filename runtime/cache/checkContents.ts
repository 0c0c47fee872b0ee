import { type PartName, partsOf, type SequenceLayout } from '../../codegen/plan/layout.js';
import { type ErrorCode, KvforgeError } from '../../dsl/errors.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { SequenceLengths } from '../record.js';
import { checkWhole } from './checkInput.js';
import { checkTiltContents } from './checkTiltContents.js';
import type { SequenceContents } from './contents.js';
import { mostEvicted } from './lengths.js';

/** Where lengths come from, for the texts of errors. */
export interface LengthsOrigin {
  /** What comes before the name of a length. */
  readonly prefix: string;
  /** What to do about a length that is past the capacity. */
  readonly hint: (length: keyof SequenceLengths) => string;
  readonly code: ErrorCode;
}

/**
 * A kernel believes the record: a length past a part would be read past the part.
 *
 * @throws KvforgeError with the name of the length
 */
export function checkLengths(
  { capacity }: SequenceLayout,
  promptTokens: number,
  lengths: SequenceLengths,
  { prefix, hint, code }: LengthsOrigin,
): void {
  const most: Omit<SequenceLengths, 'refusedTokens' | 'evictedTokens'> = {
    sinkTokens: capacity.sinks,
    middleTokens: capacity.middle,
    streamTokens: capacity.stream,
    windowTokens: capacity.window,
    windowStart: capacity.window - 1,
    promptTokens,
  };
  for (const name of Object.keys(most) as (keyof typeof most)[]) {
    const at = `${prefix}lengths.${name}`;
    checkWhole(lengths?.[name], { at, least: 0, most: most[name], hint: hint(name), code });
  }
  const evicted = { least: 0, most: mostEvicted, hint: hint('evictedTokens'), code };
  checkWhole(lengths.evictedTokens ?? 0, { at: `${prefix}lengths.evictedTokens`, ...evicted });
}

/**
 * Codes that a kernel would follow out of its memory, and numbers that would spread: indices past the codebook, widths
 * past the row, f16 that is not finite; outliers of channels that there are none of; and fields outside of their planes.
 *
 * @throws KvforgeError `invalid-input` with the part and the place in it
 */
export function checkContents(
  g: Geometry,
  { parts }: SequenceContents,
  { prefix, hint }: { readonly prefix: string; readonly hint: string },
): void {
  const refuse = (part: PartName, at: number, expected: string, received: string): never => {
    throw new KvforgeError('invalid-input', { at: `${prefix}${part}[${at}]`, expected, received, hint });
  };
  if (g.family === 'tilt') checkTiltContents(g, parts, refuse);
  const dtypes = new Map(partsOf(g).map(({ name, dtype }) => [name, dtype]));
  for (const [name, bytes] of parts) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    if (dtypes.get(name) === 'F16') {
      for (let at = 0; at * 2 < bytes.length; at++) {
        const half = view.getUint16(at * 2, true);
        if ((half & 0x7c00) === 0x7c00)
          refuse(name, at, 'a finite f16 number', (half & 0x3ff) !== 0 ? 'NaN' : 'Infinity');
        if (name === 'keyWeights' && (half === 0 || half >= 0x8000))
          refuse(name, at, 'a weight above 0', 'one that is not');
      }
    }
    if (name === 'valueCodes' && g.family === 'low-rank' && g.entries < 256) {
      const at = bytes.findIndex((index) => index >= g.entries);
      if (at >= 0) refuse(name, at, `an index below ${g.entries} (entries of the codebook)`, String(bytes[at]));
    }
    const isSparse = name === 'keyOutliers' || name === 'valueOutliers';
    for (let at = 0; isSparse && at * 4 < bytes.length; at++) {
      const [channel, residual] = [view.getUint16(at * 4, true), view.getUint16(at * 4 + 2, true)];
      if (channel >= g.headDim) refuse(name, at, `a channel below ${g.headDim}`, String(channel));
      if ((residual & 0x7c00) === 0x7c00) refuse(name, at, 'a finite f16 residual', 'one that is not');
    }
    for (let at = 0; name === 'keyWidths' && at * 4 < bytes.length; at++) {
      const width = view.getUint32(at * 4, true);
      const [firstBit, bits] = [width >>> 4, width & 15];
      if (bits > 8 || bits === 7) refuse(name, at, '0 to 6 or 8 bits a component', String(bits));
      const end = firstBit + 16 * bits;
      if (bits > 0 && end > g.keyRowWords * 32)
        refuse(name, at, `an end at bit ${g.keyRowWords * 32} or before`, String(end));
    }
  }
}
