import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';
import { placeFields, type TiltMiddle, writeField } from '../reference/index.js';
import { headWordsOf, keyFieldBit, normIndex, pairOrder, valueFieldBit } from '../reference/unpackTilt.js';
import { halfBits } from './draws.js';
import { fieldRows, halfBytes, halfRows, type PackedPart } from './packedPart.js';

/** The middle of a sequence with tile-rotated keys: the inverse of `unpackTiltMiddle`. */
export function* packTiltMiddle(g: TiltGeometry, middle: TiltMiddle): Generator<PackedPart> {
  const { kvHeads, headDim: d, groupComponents: group, headGroups } = g;
  const { tokens, firstPosition, widths, keyCodes, tiltValues } = middle;
  if (tokens === 0) return;
  const rows = new Uint8Array(Math.ceil((firstPosition + tokens) / rowPositions) * g.rowWords * 4);
  const heads = headWordsOf(g, widths);
  const fields = new Uint32Array(kvHeads * g.fieldWords);
  for (const [head, { first, nibbles }] of heads.entries()) {
    const { groups } = placeFields(widths.slice(head * headGroups, (head + 1) * headGroups));
    fields.set(
      [...groups.map(({ bits, bit, slot }) => bits + 16 * bit + 65536 * slot), nibbles, first],
      head * g.fieldWords,
    );
    for (let token = 0; token < tokens; token++) {
      const position = firstPosition + token;
      const inRow = position % rowPositions;
      const words = Math.floor(position / rowPositions) * g.rowWords + first;
      for (const [index, { bits, bit }] of groups.entries()) {
        for (let c = 0; c < group && bits > 0; c++) {
          const code = keyCodes[(token * kvHeads + head) * d + index * group + c]! + 2 ** (bits - 1);
          writeField(rows, { offset: words * 32 + keyFieldBit(inRow, c, bit, g, nibbles), width: bits }, code);
        }
      }
      if (!g.packedValues) continue;
      const values = words + nibbles * 8 * group;
      for (let channel = 0; channel < d; channel++) {
        const code = tiltValues.codes[(token * kvHeads + head) * d + channel]!;
        writeField(rows, { offset: values * 32 + valueFieldBit(inRow, channel, d), width: 2 }, code);
      }
      const [norm] = halfBits([tiltValues.scales[token * kvHeads + head]!]);
      writeField(rows, { offset: (values + 4 * d) * 32 + normIndex(inRow) * 16, width: 16 }, norm!);
    }
  }
  const order = pairOrder(g);
  const byPair = (numbers: Float64Array) => numbers.map((_, at) => numbers[at - (at % d) + order[at % d]!]!);
  yield ['tileCodes', rows];
  yield ['keySteps', halfBytes(middle.steps)];
  const basis = middle.basisCodes.map((_, at) => middle.basisCodes[at - (at % d) + order[at % d]!]!);
  yield ['keyBasis', new Uint8Array(basis.buffer)];
  yield ['keyMean', halfBytes(byPair(middle.mean))];
  yield ['keyWeights', halfBytes(byPair(middle.weights))];
  yield ['keyFields', new Uint8Array(fields.buffer)];
  if (tiltValues.gains) yield ['valueGains', halfBytes(tiltValues.gains)];
  if (g.packedValues) return;
  const { headWords, bits, scaleRowWords, scaleChannels } = g.values;
  const row = { count: g.width / scaleChannels, words: scaleRowWords };
  yield ['valueCodes', fieldRows(tiltValues.codes, { count: d, words: headWords, bits })];
  yield ['valueScales', halfRows(tiltValues.scales, row)];
  if (tiltValues.offsets) yield ['valueOffsets', halfRows(tiltValues.offsets, row)];
}
