import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';
import type { SequenceLengths } from '../record.js';
import { readField, readSignedField } from './fields.js';
import type { ShareReader } from './shareReader.js';
import type { TiltMiddle, TiltValueCodes } from './tilt.js';
import { placeFields } from './tiltPlaces.js';
import { channelPairs } from './weights.js';

/** Channels of a head as keys lie in the cache: the first channels of all pairs, then the second ones. */
export function pairOrder({ model, headDim }: Pick<TiltGeometry, 'model' | 'headDim'>): readonly number[] {
  const pairs = channelPairs(model.rope, headDim);
  return [...pairs.map(([first]) => first), ...pairs.map(([, second]) => second)];
}

/** A field within a head's part of a row: its first bit, counted from there. */
export function keyFieldBit(
  position: number,
  component: number,
  bit: number,
  g: TiltGeometry,
  nibbles: number,
): number {
  const size = g.groupComponents;
  const [half, y] = [Math.floor(position / 32), position % 32];
  const plane = Math.floor(bit / 8);
  const inNibbles = nibbles % 2 === 1 && plane === Math.floor(nibbles / 2);
  const row = inNibbles ? y % 8 : half * 8 + (y % 8);
  const word = (row * (size / 4) + Math.floor(component / 4)) * 4 + Math.floor(y / 8);
  const byte = plane * 64 * size + word * 4 + (component % 4);
  return byte * 8 + (bit % 8) + (inNibbles ? half * 4 : 0);
}

/** A 2-bit code of a value within a head's value codes: its first bit. */
export function valueFieldBit(position: number, channel: number, headDim: number): number {
  const [piece, y] = [Math.floor(position / 32), position % 32];
  const abreast = headDim % 128 === 0 ? 4 : headDim % 64 === 0 ? 2 : 1;
  const k = Math.floor(channel / 4);
  const [j, lane] = [Math.floor(k / 8), k % 8];
  const block = ((y % 2) * (headDim / 32)) / abreast + Math.floor(j / abreast);
  const word = piece * 2 * headDim + (block * 32 + lane * 4 + (Math.floor(y / 2) % 4)) * abreast + (j % abreast);
  return word * 32 + Math.floor(y / 8) * 8 + (channel % 4) * 2;
}

/** Place of a norm among the 64 of a head in a row. */
export function normIndex(position: number): number {
  const y = position % 32;
  return Math.floor(position / 32) * 32 + (y % 8) * 4 + Math.floor(y / 8);
}

/** Words of a row before those of each head. */
export function headWordsOf(g: TiltGeometry, widths: readonly number[]): readonly { first: number; nibbles: number }[] {
  let first = 0;
  return Array.from({ length: g.kvHeads }, (_, head) => {
    const { nibbles } = placeFields(widths.slice(head * g.headGroups, (head + 1) * g.headGroups));
    const own = { first, nibbles };
    first += nibbles * 8 * g.groupComponents + g.rowValueWords;
    return own;
  });
}

/** The middle of a sequence with tile-rotated keys, bit by bit. */
export function unpackTiltMiddle(
  g: TiltGeometry,
  reader: ShareReader,
  { sinkTokens, middleTokens }: SequenceLengths,
  levels: ArrayLike<number>,
): TiltMiddle {
  const { kvHeads, headDim: d, headGroups, groupComponents: group } = g;
  const rows = reader.bytes('tileCodes');
  const fieldBytes = reader.bytes('keyFields');
  const field = (head: number, entry: number, offset: number, width: number) =>
    readField(fieldBytes, { offset: (head * g.fieldWords + entry) * 32 + offset, width });
  const widths: number[] = [];
  const keyCodes = new Int32Array(middleTokens * kvHeads * d);
  const heads = Array.from({ length: kvHeads }, (_, head) => ({
    nibbles: middleTokens > 0 ? field(head, headGroups, 0, 32) : 0,
    first: middleTokens > 0 ? field(head, headGroups + 1, 0, 32) : 0,
  }));
  for (const [head, { nibbles, first }] of heads.entries()) {
    for (let index = 0; index < headGroups; index++) {
      const bits = middleTokens > 0 ? field(head, index, 0, 4) : 0;
      widths.push(bits);
      if (bits === 0) continue;
      const bit = field(head, index, 4, 12);
      for (let token = 0; token < middleTokens; token++) {
        const position = sinkTokens + token;
        const row = (Math.floor(position / rowPositions) * g.rowWords + first) * 32;
        for (let c = 0; c < group; c++) {
          const offset = row + keyFieldBit(position % rowPositions, c, bit, g, nibbles);
          const at = (token * kvHeads + head) * d + index * group + c;
          keyCodes[at] = fieldWithin(rows, offset, bits) - 2 ** (bits - 1);
        }
      }
    }
  }
  const blocks =
    middleTokens === 0 ? 0 : g.rangeBlock === 0 ? 1 : Math.ceil((sinkTokens + middleTokens) / g.rangeBlock);
  const order = pairOrder(g);
  const basis = reader.bytes('keyBasis');
  const basisCodes = new Int8Array(kvHeads * d * d);
  for (let at = 0; at < basisCodes.length; at++) {
    basisCodes[at - (at % d) + order[at % d]!] = readSignedField(basis, { offset: at * 8, width: 8 });
  }
  const inOrder = (numbers: Float64Array) => {
    const natural = new Float64Array(numbers.length);
    for (const [at, x] of numbers.entries()) natural[at - (at % d) + order[at % d]!] = x;
    return natural;
  };
  return {
    tokens: middleTokens,
    firstPosition: sinkTokens,
    tile: g.tile,
    rangeBlock: g.rangeBlock,
    group,
    widths,
    keyCodes,
    steps: reader.halves('keySteps', blocks * g.width),
    basisCodes,
    mean: inOrder(reader.halves('keyMean', g.width)),
    weights: inOrder(reader.halves('keyWeights', g.width)),
    tiltValues: {
      scaleChannels: g.values.scaleChannels,
      ...(g.packedValues
        ? packedValues(g, reader, heads, { sinkTokens, middleTokens })
        : scalarValues(g, reader, middleTokens)),
      levels: Float64Array.from(levels),
      ...(g.gained ? { gains: reader.halves('valueGains', g.width) } : {}),
    },
  };
}

/** Zero for what lies outside: wrong places are for a check to find. */
function fieldWithin(bytes: Uint8Array, offset: number, width: number): number {
  return offset + width > bytes.length * 8 ? 0 : readField(bytes, { offset, width });
}

type Coded = Pick<TiltValueCodes, 'codes' | 'scales' | 'offsets'>;

function packedValues(
  g: TiltGeometry,
  reader: ShareReader,
  heads: readonly { readonly first: number; readonly nibbles: number }[],
  { sinkTokens, middleTokens }: Pick<SequenceLengths, 'sinkTokens' | 'middleTokens'>,
): Coded {
  const { kvHeads, headDim: d } = g;
  const rows = reader.bytes('tileCodes');
  const codes = new Uint8Array(middleTokens * kvHeads * d);
  const scales = new Float64Array(middleTokens * kvHeads);
  for (let token = 0; token < middleTokens; token++) {
    const position = sinkTokens + token;
    for (const [head, { first, nibbles }] of heads.entries()) {
      const words = Math.floor(position / rowPositions) * g.rowWords + first + nibbles * 8 * g.groupComponents;
      for (let channel = 0; channel < d; channel++) {
        const offset = words * 32 + valueFieldBit(position % rowPositions, channel, d);
        codes[(token * kvHeads + head) * d + channel] = fieldWithin(rows, offset, 2);
      }
      const norm = (words + 4 * d) * 2 + normIndex(position % rowPositions);
      scales[token * kvHeads + head] = norm * 2 < rows.length ? reader.halves('tileCodes', 1, norm)[0]! : 0;
    }
  }
  return { codes, scales };
}

function scalarValues(g: TiltGeometry, reader: ShareReader, tokens: number): Coded {
  const { bits, headWords, scaleChannels, scaleRowWords, codec } = g.values;
  const row = { count: g.width / scaleChannels, words: scaleRowWords };
  return {
    codes: reader.fieldRows('valueCodes', tokens * g.kvHeads, { count: g.headDim, words: headWords, bits }),
    scales: reader.halfRows('valueScales', tokens, row),
    ...(codec.device.offset ? { offsets: reader.halfRows('valueOffsets', tokens, row) } : {}),
  };
}
