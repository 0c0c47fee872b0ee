import { setFloat16 } from '@petamoriken/float16';
import type { PartName, SequenceLayout } from '../../codegen/plan/layout.js';
import type { Geometry, LowRankGeometry, ScalarGroups } from '../../dsl/geometry.js';
import { levelsOf } from '../../dsl/levels.js';
import { usedRanges } from '../cache/contents.js';
import type { SequenceLengths } from '../record.js';
import { channelPairs } from '../reference/weights.js';
import { fillTiltPart } from './syntheticTilt.js';

/** The next 32 random bits. */
type Bits = () => number;

/** Marsaglia's xorshift of 32 bits: a measurement needs codes without a pattern, millions of them in milliseconds. */
function xorshift(seed: number): Bits {
  // Zero is its one fixed point.
  let state = (Math.imul(seed, 0x9e3779b9) ^ 0x6b79d38f) | 0 || 1;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

const unit = (bits: Bits) => bits() / 2 ** 32;

/** Close to N(0, 1): the sum of four uniform numbers, which has no far tails. */
function normal(bits: Bits): number {
  return (unit(bits) + unit(bits) + unit(bits) + unit(bits) - 2) * Math.sqrt(3);
}

/** Widths of the key groups of one prompt, best first, as an encoder gives them: they sum up to the budget or less. */
function groupWidths(g: LowRankGeometry): readonly number[] {
  const widths: number[] = [];
  // In units of 16 bits: a group of 16 components with one bit each.
  let left = g.keyRowWords * 2;
  for (let group = 0; group < g.allocatedGroups; group++) {
    const mean = left / (g.allocatedGroups - group);
    const bits = Math.min(6, Math.ceil(mean), left);
    widths.push(bits);
    left -= bits;
  }
  return widths;
}

/** Bits of every component. */
function componentBits(g: LowRankGeometry): readonly number[] {
  const allocated = groupWidths(g);
  return Array.from({ length: g.rank }, (_, component) => {
    if (g.allocatedGroups > 0) return allocated[Math.floor(component / 16)]!;
    return g.keyGroups.find(
      ({ firstComponent, components }) => component >= firstComponent && component < firstComponent + components,
    )!.bits;
  });
}

function componentScale(g: LowRankGeometry): (component: number) => number {
  const widths = componentBits(g);
  const stored = Math.max(1, widths.filter((width) => width > 0).length);
  return (component) => {
    const width = widths[component] ?? 0;
    // Uniform codes up to L have a root mean square of L / sqrt(3); the components share the variance of a key.
    return width === 0 ? 0 : (Math.sqrt(g.width / stored) * Math.sqrt(3)) / 2 ** (width - 1);
  };
}

/** The scale with which codes of random content are about N(0, 1). */
function scalarScale({ codec, levelChannels }: ScalarGroups): number {
  const levels = levelsOf(codec, levelChannels);
  const middle = codec.device.offset ? levels.reduce((sum, level) => sum + level, 0) / levels.length : 0;
  const square = levels.reduce((sum, level) => sum + (level - middle) ** 2, 0) / levels.length;
  return 1 / Math.sqrt(square);
}

/** The numbers of one f16 part, element by element, so that decoded keys and values are about N(0, 1). */
function halfElement(g: Geometry, name: PartName, bits: Bits): (element: number) => number {
  switch (name) {
    case 'keyScales':
      if (g.family === 'low-rank') return componentScale(g);
      return () => (g.family === 'scalar' ? scalarScale(g.keys) : 1) * (0.75 + unit(bits) / 2);
    case 'valueScales':
      return () => (g.family === 'scalar' || g.family === 'tilt' ? scalarScale(g.values) : 1) * (0.75 + unit(bits) / 2);
    case 'latentScales':
    case 'rotaryScales': {
      const groups = g.family !== 'latent' ? undefined : name === 'latentScales' ? g.latent : g.rotary;
      return () => (groups ? scalarScale(groups) : 1) * (0.75 + unit(bits) / 2);
    }
    case 'latentOffsets':
    case 'rotaryOffsets':
    case 'keyOffsets':
    case 'valueOffsets':
      // Three deviations on both sides of zero.
      return () => -3 * (0.75 + unit(bits) / 2);
    case 'keyBasisScales':
      // A column of uniform int8 codes has a root mean square of 73; basis columns have unit length.
      return () => (0.75 + unit(bits) / 2) / 73 / Math.sqrt(g.width);
    case 'keyWeights': {
      const weights = new Float64Array(g.width);
      for (let head = 0; head < g.kvHeads; head++) {
        for (const [a, b] of channelPairs(g.model.rope, g.headDim)) {
          const weight = 0.5 + unit(bits) / 2;
          weights[head * g.headDim + a] = weight;
          weights[head * g.headDim + b] = weight;
        }
      }
      return (channel) => weights[channel] ?? 1;
    }
    case 'codebook':
      return () => 2 * unit(bits) - 1;
    case 'channelMax':
      return () => 1 + unit(bits);
    case 'streamKeyNorms':
    case 'streamValueNorms':
    case 'streamNorms':
      return () => Math.sqrt(g.headDim) * (0.75 + unit(bits) / 2);
    case 'residualNorms':
      // About what two bits leave of such a key.
      return () => Math.sqrt(g.headDim) * (0.25 + unit(bits) / 10);
    default:
      return () => normal(bits);
  }
}

/** More distinct numbers than this make no difference to a kernel; drawing each anew would take seconds. */
const drawnHalves = 4096;
/** Whose numbers depend on their place. */
const placed: readonly PartName[] = ['keyScales', 'keyWeights'];

function fillHalves(g: Geometry, name: PartName, bytes: Uint8Array, bits: Bits): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const elements = bytes.byteLength / 2;
  const element = halfElement(g, name, bits);
  const distinct = g.family === 'low-rank' && placed.includes(name) ? elements : Math.min(elements, drawnHalves);
  for (let i = 0; i < distinct; i++) setFloat16(view, i * 2, element(i), true);
  for (let i = distinct; i < elements; i++) view.setUint16(i * 2, view.getUint16((bits() % distinct) * 2, true), true);
}

function fillWords(bytes: Uint8Array, next: Bits): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < bytes.byteLength; at += 4) view.setUint32(at, next(), true);
}

function fillPart(g: Geometry, name: PartName, bytes: Uint8Array, bits: Bits): void {
  if (g.family === 'tilt') {
    const drawing = { unit: () => unit(bits), words: (own: Uint8Array) => fillWords(own, bits) };
    if (fillTiltPart(g, name, bytes, drawing)) return;
  }
  switch (name) {
    case 'keyCodes':
    case 'streamKeyCodes':
    case 'streamValueCodes':
    case 'keyBasis':
    case 'latentCodes':
    case 'streamLatents':
    case 'residualSigns':
      fillWords(bytes, bits);
      break;
    case 'rotaryKeys':
    case 'streamRotaryKeys':
      if (g.family === 'latent' && g.rotary) fillWords(bytes, bits);
      else fillHalves(g, name, bytes, bits);
      break;
    case 'valueCodes':
      fillWords(bytes, bits);
      // Indices name entries of the codebook.
      if (g.family === 'low-rank') for (let i = 0; g.entries < 256 && i < bytes.byteLength; i++) bytes[i]! %= g.entries;
      break;
    case 'keyOutliers':
    case 'valueOutliers': {
      const drawn = new DataView(new ArrayBuffer(2));
      fillWords(bytes, () => {
        setFloat16(drawn, 0, 2 * normal(bits));
        return (bits() % g.headDim) + drawn.getUint16(0) * 0x10000;
      });
      break;
    }
    case 'outlierCounts':
      break;
    case 'keyWidths': {
      if (g.family !== 'low-rank') break;
      let firstBit = 0;
      const words = groupWidths(g).map((width) => {
        const word = firstBit * 16 + width;
        firstBit += 16 * width;
        return word;
      });
      fillWords(bytes, () => words.shift()!);
      break;
    }
    default:
      fillHalves(g, name, bytes, bits);
  }
}

/**
 * A share of the cache with codes of random content and plausible scales, as `KvCache.writeShare` takes it: what a kernel
 * costs does not depend on the prompt, and encoding one of 128K tokens takes far longer than attending over it. Rows that
 * the lengths do not put to use stay zero. The same seed gives the same bytes.
 *
 * @param layout of the cache that the share is for
 * @param lengths within the layout's capacity
 * @example
 * const share = syntheticShare(cache.geometry, cache.layout, await cache.lengths(0), 1);
 * share.length === cache.layout.bytes; // true
 */
export function syntheticShare(
  g: Geometry,
  layout: SequenceLayout,
  lengths: SequenceLengths,
  seed: number,
): Uint8Array {
  const share = new Uint8Array(layout.bytes);
  const bits = xorshift(seed);
  for (const { part, offset, bytes } of usedRanges(layout, lengths)) {
    fillPart(g, part.name, share.subarray(offset, offset + bytes), bits);
  }
  return share;
}
