import { setFloat16 } from '@petamoriken/float16';
import type { PartName } from '../../codegen/plan/layout.js';
import { rowPositions, type TiltGeometry } from '../../dsl/tiltGeometry.js';
import { placeFields } from '../reference/tiltPlaces.js';

/** Uniform in [0, 1). */
type Unit = () => number;

/**
 * Fills a part that this family alone has, or has in an order of its own, so that decoded keys and values are about N(0, 1).
 *
 * @param words fills bytes with random words
 * @returns whether it is such a part
 */
export function fillTiltPart(
  g: TiltGeometry,
  name: PartName,
  bytes: Uint8Array,
  { unit, words }: { readonly unit: Unit; readonly words: (bytes: Uint8Array) => void },
): boolean {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const heads = headWidths(g);
  const near = () => 0.75 + unit() / 2;
  switch (name) {
    case 'tileCodes': {
      words(bytes);
      if (!g.packedValues) return true;
      const places = placesOf(g, heads);
      for (let row = 0; row < bytes.length; row += g.rowWords * 4) {
        for (const { values } of places) {
          const norms = row + (values + 4 * g.headDim) * 4;
          for (let i = 0; i < rowPositions; i++) setFloat16(view, norms + i * 2, Math.sqrt(g.headDim) * near(), true);
        }
      }
      return true;
    }
    case 'keySteps':
      for (let at = 0; at * 2 < bytes.length; at++) {
        const component = at % g.width;
        const own = heads[Math.floor(component / g.headDim)]!;
        const bits = own[Math.floor((component % g.headDim) / g.groupComponents)]!;
        const stored = own.filter((width) => width > 0).length * g.groupComponents;
        // Uniform codes have a root mean square of 2^bits / sqrt(12), uniform int8 entries one of 73; the components share
        // the variance of a key.
        const step = bits === 0 ? 0 : (128 * Math.sqrt(12 / stored)) / 2 ** bits / 73;
        setFloat16(view, at * 2, step * near(), true);
      }
      return true;
    case 'keyWeights':
      for (let at = 0; at < g.width; at++) {
        const first = at % g.headDim < g.pairs;
        const weight = first ? 0.5 + unit() / 2 : view.getUint16((at - g.pairs) * 2, true);
        if (first) setFloat16(view, at * 2, weight, true);
        else view.setUint16(at * 2, weight, true);
      }
      return true;
    case 'valueGains':
      for (let at = 0; at * 2 < bytes.length; at++) setFloat16(view, at * 2, 0.9 + unit() / 5, true);
      return true;
    case 'keyFields':
      for (const [head, { first, nibbles, groups }] of placesOf(g, heads).entries()) {
        const own = [...groups.map(({ bits, bit, slot }) => bits + 16 * bit + 65536 * slot), nibbles, first];
        for (const [i, word] of own.entries()) view.setUint32((head * g.fieldWords + i) * 4, word, true);
      }
      return true;
    default:
      return false;
  }
}

/** Words of a row before each head, and before its value codes. */
function placesOf(g: TiltGeometry, heads: readonly (readonly number[])[]) {
  let first = 0;
  return heads.map((widths) => {
    const own = { ...placeFields(widths), first, values: 0 };
    own.values = first + own.nibbles * 8 * g.groupComponents;
    first = own.values + g.rowValueWords;
    return own;
  });
}

/** Widths that differ from head to head, as an encoder gives them: every other head has a nibble more, its neighbour one less. */
function headWidths(g: TiltGeometry): readonly (readonly number[])[] {
  const mean = Math.floor(g.keyNibbles / g.kvHeads);
  return Array.from({ length: g.kvHeads }, (_, head) => {
    const even = g.kvHeads % 2 === 1 && head === g.kvHeads - 1;
    const most = mean < 2 || even ? mean : head % 2 === 0 ? mean + 1 : mean - 1;
    let widths: readonly number[] = Array.from({ length: g.headGroups }, () => 0);
    // Wider the earlier a group is, until nothing fits any more.
    for (let grown = true; grown; ) {
      grown = false;
      for (let last = 0; last < g.headGroups; last++) {
        for (let group = 0; group <= last; group++) {
          const wider = widths.with(group, Math.min(6, widths[group]! + 1));
          if (wider[group] === widths[group] || placeFields(wider).nibbles > most) continue;
          widths = wider;
          grown = true;
        }
      }
    }
    return widths;
  });
}
