import type { PartName } from '../../codegen/plan/layout.js';
import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';

type Refuse = (part: PartName, at: number, expected: string, received: string) => never;

/**
 * Fields that a kernel would look for outside of their head's planes, and norms that are not finite.
 *
 * @param parts the rows in use of every part; none where nothing is compressed
 */
export function checkTiltContents(g: TiltGeometry, parts: ReadonlyMap<PartName, Uint8Array>, refuse: Refuse): void {
  const fields = wordsOf(parts.get('keyFields'));
  if (fields.length === 0) return;
  let [first, taken] = [0, 0];
  /** Words of a row at which each head's value codes begin. */
  const valueWords: number[] = [];
  for (let head = 0; head < g.kvHeads; head++) {
    const at = head * g.fieldWords;
    const nibbles = fields[at + g.headGroups]!;
    if (taken + nibbles > g.keyNibbles) {
      const left = `at most ${g.keyNibbles - taken} nibbles (of the ${g.keyNibbles} of a row)`;
      refuse('keyFields', at + g.headGroups, left, String(nibbles));
    }
    const place = fields[at + g.headGroups + 1]!;
    if (place !== first) refuse('keyFields', at + g.headGroups + 1, `${first}, after the heads before`, String(place));
    checkFields(g, fields.subarray(at, at + g.headGroups), { at, nibbles }, refuse);
    taken += nibbles;
    first += nibbles * 8 * g.groupComponents;
    valueWords.push(first);
    first += g.rowValueWords;
  }
  if (g.packedValues) checkNorms(g, parts.get('tileCodes')!, valueWords, refuse);
}

/** Widths that exist, in planes that the head has, in the order that slots say. */
function checkFields(
  { headGroups }: TiltGeometry,
  fields: Uint32Array,
  { at, nibbles }: { readonly at: number; readonly nibbles: number },
  refuse: Refuse,
): void {
  for (let group = 0; group < headGroups; group++) {
    const own = fieldOf(fields[group]!);
    if (own.bits > 8 || own.bits === 7)
      refuse('keyFields', at + group, '0 to 6 or 8 bits a component', String(own.bits));
    if (own.bits === 0) continue;
    const plane = Math.floor(own.bit / 8);
    const room = Math.min(8, (nibbles - 2 * plane) * 4);
    if (own.place + own.bits > room) {
      refuse('keyFields', at + group, `a field within the ${nibbles} nibbles of its head`, `bit ${own.bit}`);
    }
    const before = fields.reduce((count, word) => {
      const { bits, bit } = fieldOf(word);
      return count + (bits > 0 && bit < own.bit ? 1 : 0);
    }, 0);
    if (own.slot !== before) refuse('keyFields', at + group, `slot ${before}`, `slot ${own.slot}`);
  }
}

function fieldOf(word: number) {
  const bit = (word >>> 4) & 0xfff;
  return { bits: word & 15, bit, place: bit % 8, slot: word >>> 16 };
}

function checkNorms(g: TiltGeometry, rows: Uint8Array, valueWords: readonly number[], refuse: Refuse): void {
  const halves = new Uint16Array(rows.slice().buffer);
  for (let row = 0; row * g.rowWords * 4 < rows.length; row++) {
    for (const values of valueWords) {
      const first = (row * g.rowWords + values + 4 * g.headDim) * 2;
      for (let at = first; at < first + rowPositions; at++) {
        const half = halves[at]!;
        if ((half & 0x7c00) !== 0x7c00) continue;
        refuse('tileCodes', at, 'a finite f16 norm', (half & 0x3ff) !== 0 ? 'NaN' : 'Infinity');
      }
    }
  }
}

function wordsOf(bytes: Uint8Array | undefined): Uint32Array {
  return new Uint32Array((bytes ?? new Uint8Array()).slice().buffer);
}
